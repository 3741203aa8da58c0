"""Megatron's experts: their kernels and their dispatch on real values, and a small Mixtral's trace.

The Mixtral has four experts of 32 features, two of them for each token, in two layers of 64 features.
"""

import types

import pytest
import torch

from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.stacks.megatron.grouped_experts import Dispatcher, GroupedLinear, WeightedSwiGlu
from tests.service.worker.cases import config, requested_bytes, traced_on_transformers
from tests.service.worker.stacks.fsdp2.test_experts import exchanges

MIXTRAL = config(
    model_type="mixtral", intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=None
)
MEGATRON = {"framework": "megatron", "zero_stage": 1, "config": MIXTRAL}
# One expert: gate and up [64, 64], down [64, 32].
EXPERT = 4096 + 2048
# A layer's q and o 64 x 64, k and v 32 x 64, router 4 x 64, two norms 64; outside embedding and head 101 x 64, a norm.
BESIDE = 2 * (2 * 4096 + 2 * 2048 + 256 + 128) + 2 * 6464 + 64


def alone(held):
    return Dispatcher(held=held, per_token=2, group=types.SimpleNamespace(size=lambda: 1), tensor_group=None)


def test_each_expert_multiplies_its_own_tokens_and_adds_its_gradient_up():
    torch.manual_seed(0)
    tokens, weights = torch.randn(6, 5, requires_grad=True), torch.nn.Parameter(torch.randn(3, 4, 5))
    weights.main_grad = torch.zeros(3, 4, 5)
    expected = torch.cat([part @ weight.t() for part, weight in zip(tokens.split(2), weights, strict=True)])
    output = GroupedLinear.apply(tokens, weights)
    torch.testing.assert_close(output, expected)
    (output**2).sum().backward()
    of_tokens, of_weights = torch.autograd.grad((expected**2).sum(), (tokens, weights))
    torch.testing.assert_close(tokens.grad, of_tokens)
    torch.testing.assert_close(weights.main_grad, of_weights)
    assert weights.grad is None


def test_the_weighted_swiglu_is_that_of_separate_operations():
    torch.manual_seed(0)
    inner, scores = torch.randn(6, 8, requires_grad=True), torch.rand(6, 1, requires_grad=True)
    gate, up = inner.chunk(2, dim=-1)
    expected = torch.nn.functional.silu(gate) * up * scores
    output = WeightedSwiGlu.apply(inner, scores)
    torch.testing.assert_close(output, expected)
    found = torch.autograd.grad((output**2).sum(), (inner, scores))
    torch.testing.assert_close(found, torch.autograd.grad((expected**2).sum(), (inner, scores)))


def test_tokens_come_back_to_their_places_once_for_each_of_their_experts():
    hidden = torch.arange(12.0).view(4, 3)
    chosen = torch.tensor([[0, 1], [2, 3], [0, 2], [1, 3]])
    routing_map = torch.zeros(4, 4).scatter(1, chosen, 1.0).bool()
    dispatcher = alone(held=4)
    tokens, scores = dispatcher.permuted(hidden, routing_map * 0.5, routing_map)
    assert tokens[:, 0].tolist() == [0, 6, 0, 9, 3, 6, 3, 9]  # tokens 0 and 2 go to the first expert
    assert scores.tolist() == [0.5] * 8
    tokens, scores = dispatcher.gathered(*dispatcher.sent(tokens, scores))
    outputs = dispatcher.fetched(dispatcher.restored(tokens))
    torch.testing.assert_close(dispatcher.unpermuted(outputs, 4), 2 * hidden)


def test_nothing_comes_back_before_it_was_sent():
    with pytest.raises(RuntimeError, match="before"):
        alone(held=1).unpermuted(torch.zeros(2, 3), 1)


@pytest.mark.slow
class TestTrace:
    def test_experts_are_dealt_out_and_their_states_divided_over_the_ranks_that_hold_the_same(self):
        ledger = traced_on_transformers(**MEGATRON, expert_parallel=2)
        held = 2 * 2 * EXPERT  # two of four experts in each of two layers
        assert requested_bytes(ledger, Kind.PARAMETER) == 2 * (BESIDE + held)
        assert requested_bytes(ledger, Kind.GRADIENT) == 4 * (BESIDE + held)
        # fp32 copy and two moments: all but experts over four ranks, those over two.
        states = requested_bytes(ledger, Kind.OPTIMIZER_STATE)
        assert states == pytest.approx(12 * (BESIDE / 4 + held / 2), rel=0.001)  # and a step count each

    def test_tokens_and_scores_are_sent_and_outputs_come_back(self):
        ledger = traced_on_transformers(**MEGATRON, expert_parallel=2)
        assert exchanges(ledger, (1, "forward")) == exchanges(ledger, (1, "backward")) == 2 * 3

    def test_over_tensor_ranks_a_rank_has_a_part_of_each_expert(self):
        split = {"data_parallel": 2, "tensor_parallel": 2, "sequence_parallel": True, "recompute": "full"}
        ledger = traced_on_transformers(**MEGATRON, **split, expert_parallel=2)
        # Matrices and vocabulary (51 of 101 rows) in halves; routers and norms whole; half of two experts a layer.
        matrices = 2 * (2 * 4096 + 2 * 2048) // 2 + 2 * 51 * 64
        assert requested_bytes(ledger, Kind.PARAMETER) == 2 * (matrices + 2 * (256 + 128) + 64 + 2 * EXPERT)
