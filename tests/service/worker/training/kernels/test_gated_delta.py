"""The gated delta rule's kernels by shapes, held against flash-linear-attention itself where it can be imported."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from plimsoll.planners.families import traits
from plimsoll.service.worker.recording.ledger import Ledger
from plimsoll.service.worker.recording.patches import traceable_torch
from plimsoll.service.worker.recording.tracker import BACKWARD, FORWARD, StorageTracker
from plimsoll.service.worker.training.kernels.gated_delta import (
    causal_conv1d,
    chunk_gated_delta_rule,
    gated_delta_kernels,
)

BATCH, LENGTH, KEY_HEADS, VALUE_HEADS, FEATURES = 2, 256, 2, 4, 128
TOKENS = BATCH * LENGTH


def given(key_heads=KEY_HEADS):
    """Return queries, keys and values, which are views of one tensor, decay and strength."""
    width = (2 * key_heads + VALUE_HEADS) * FEATURES
    projected = torch.empty(BATCH, LENGTH, width, dtype=torch.bfloat16, requires_grad=True)
    parts = projected.split([key_heads * FEATURES, key_heads * FEATURES, VALUE_HEADS * FEATURES], dim=-1)
    query, key, value = (part.unflatten(-1, (-1, FEATURES)) for part in parts)
    decay = torch.empty(BATCH, LENGTH, VALUE_HEADS, requires_grad=True)
    strength = torch.empty(BATCH, LENGTH, VALUE_HEADS, dtype=torch.bfloat16, requires_grad=True)
    return query, key, value, decay, strength


def events_of(rule, **shapes):
    """Return what a rule does to memory in both passes: sizes of allocations, and of releases, negative."""
    ledger = Ledger()
    with traceable_torch() as clock, FakeTensorMode():
        tracker = StorageTracker(ledger, clock, logit_shapes=frozenset())
        query, key, value, decay, strength = given(**shapes)
        with tracker.watching():
            tracker.begin_phase(0, FORWARD)
            output, _ = rule(query, key, value, g=decay, beta=strength, use_qk_l2norm_in_kernel=True)
            gradient = torch.empty_like(output)
            tracker.begin_phase(0, BACKWARD)
            torch.autograd.grad(output, (query, key, value, decay, strength), gradient)
            return [(-1 if event.is_release else 1) * event.piece.requested_bytes for event in ledger.so_far().events]


def held(events):
    """Return what is live after each event."""
    return [sum(events[: index + 1]) for index in range(len(events))]


@pytest.mark.parametrize("key_heads", [KEY_HEADS, VALUE_HEADS])
def test_the_delta_rule_makes_and_keeps_what_flash_linear_attention_s_does(monkeypatch, key_heads):
    rule = pytest.importorskip("fla.ops.gated_delta_rule.chunk", exc_type=ImportError)
    launched = "triton.runtime.jit.KernelInterface.__getitem__"
    monkeypatch.setattr(launched, lambda _kernel, _grid: lambda *_args, **_named: None)
    monkeypatch.setattr("fla.ops.common.chunk_o.check_shared_mem", lambda *_: True)  # as on Hopper
    theirs = events_of(rule.chunk_gated_delta_rule, key_heads=key_heads)
    ours = events_of(chunk_gated_delta_rule, key_heads=key_heads)
    assert [size for size in ours if size > 0] == [size for size in theirs if size > 0]
    assert held(ours)[-1] == held(theirs)[-1]
    # To one number a token and head, as they let go of those in another order.
    assert max(held(ours)) == pytest.approx(max(held(theirs)), abs=4 * TOKENS * VALUE_HEADS)


def test_it_keeps_normed_queries_and_keys_of_their_own_heads_and_copies_values():
    with FakeTensorMode():
        output, _ = chunk_gated_delta_rule(*given()[:3], g=given()[3], beta=given()[4])
        kept = output.grad_fn.saved_tensors
    key, value = (2 * TOKENS * heads * FEATURES for heads in (KEY_HEADS, VALUE_HEADS))
    roots, decay, strength = 4 * TOKENS * KEY_HEADS, 4 * TOKENS * VALUE_HEADS, 2 * TOKENS * VALUE_HEADS
    matrices = 2 * TOKENS * VALUE_HEADS * 64
    assert [each.nbytes for each in kept] == [key, roots, key, roots, value, decay, strength, matrices]


def test_the_convolution_keeps_its_input_and_adds_up_its_weights_gradient_in_fp32():
    with FakeTensorMode():
        inputs = torch.empty(BATCH, LENGTH, 64, dtype=torch.bfloat16, requires_grad=True).transpose(1, 2)
        weight = torch.empty(64, 4, dtype=torch.bfloat16, requires_grad=True)
        output = causal_conv1d(inputs, weight, None, activation="silu")
        assert output.stride() == inputs.stride()
        assert [each.shape for each in output.grad_fn.saved_tensors[:2]] == [inputs.shape, weight.shape]
        of_inputs, of_weight = torch.autograd.grad(output, (inputs, weight), torch.empty_like(output))
        assert (of_inputs.shape, of_weight.dtype) == (inputs.shape, torch.bfloat16)


def test_transformers_code_calls_them_within_a_trace_alone():
    from transformers.models.qwen3_next import modeling_qwen3_next as modeling

    in_loops = modeling.torch_chunk_gated_delta_rule
    with gated_delta_kernels(traits("qwen3_next").tracing):
        assert modeling.torch_chunk_gated_delta_rule is chunk_gated_delta_rule
    with gated_delta_kernels(traits("llama").tracing):
        assert modeling.torch_chunk_gated_delta_rule is in_loops
