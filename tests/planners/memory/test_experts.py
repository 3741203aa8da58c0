"""Mixtures of experts: what each rank holds of them. A layer here has 8 experts of three 16 x 64 matrices."""

import pytest

from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import ImpossibleLayout, InvalidQuestion
from plimsoll.planners.memory.activations import meeting_gradients
from plimsoll.planners.training.planning import plan_training
from tests.planners.factories import question
from tests.planners.training_cases import memory

CONFIG = {
    "model_type": "deepseek_v3", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128,
    "moe_intermediate_size": 16, "num_hidden_layers": 2, "first_k_dense_replace": 1, "num_attention_heads": 4,
    "num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
    "n_group": 1, "topk_group": 1, "tie_word_embeddings": False,
}  # fmt: skip
MODEL = describe_config(CONFIG, name="mixture")
EXPERTS = 8 * 3 * 16 * 64


def parameters(framework: str, **layout: int) -> int:
    """Return the bytes at rest of the parameters."""
    return memory(framework, model=MODEL, sequence_length=32, layout=layout).items.parameters


def test_expert_parallelism_divides_experts_and_nothing_else():
    whole = parameters("megatron", data_parallel=4, zero_stage=1)
    divided = parameters("megatron", data_parallel=4, expert_parallel=4, zero_stage=1)
    assert whole - divided == 2 * EXPERTS * 3 // 4


@pytest.mark.parametrize(("expert_parallel", "parts"), [(1, 4), (2, 2), (4, 4)])
def test_experts_on_tensor_ranks_are_whole_and_not_divided_further_at_rest(expert_parallel, parts):
    # One replica of four tensor ranks: an expert is cut over all of them, or lies whole on every second or fourth.
    layout = {"tensor_parallel": 4, "zero_stage": 1, "sequence_parallel": True}
    cut = parameters("megatron", **layout)
    held = parameters("megatron", **layout, expert_parallel=expert_parallel)
    assert held - cut == 2 * EXPERTS // parts - 2 * EXPERTS // 4


def test_an_expert_s_optimizer_is_shared_by_fewer_ranks():
    # Four ranks of data with two of experts: half the experts, their 12 bytes over two ranks: a quarter, as without.
    plain = memory("megatron", model=MODEL, sequence_length=32, layout={"data_parallel": 4, "zero_stage": 1})
    layout = {"data_parallel": 4, "expert_parallel": 2, "zero_stage": 1}
    divided = memory("megatron", model=MODEL, sequence_length=32, layout=layout)
    assert divided.items.optimizer == pytest.approx(plain.items.optimizer, rel=1e-3)


def test_cutting_between_experts_leaves_a_whole_one_on_some_ranks():
    # 8 experts on 16 ranks: a whole expert on each of eight, where a cut within would leave half of one.
    cut_between = parameters("accelerate", data_parallel=16, zero_stage=3)
    cut_within = parameters("fsdp2", data_parallel=16, zero_stage=3)
    assert cut_between - cut_within == 4 * (EXPERTS // 8 - EXPERTS // 16)


def test_of_experts_in_turn_one_s_gradients_meet():
    layer = describe_config({**CONFIG, "moe_intermediate_size": 512}, name="wide").layers[1]
    # Two experts of 512 features work on a token: 1,024. Of eight in turn one has 128 on average, and the shared expert
    # is the widest with its 512.
    assert meeting_gradients(layer, None) == (1024, 2)
    assert meeting_gradients(layer, None, experts_in_turn=True) == (512, 2)


def test_a_mixture_is_planned_with_its_assumption():
    asked = question(model=MODEL, framework="megatron", gpus=8, layout={"expert_parallel": 4}, sequence_length=128)
    answer = plan_training(asked)
    assert answer.plan.layout.expert_parallel == 4
    assert any("equally busy" in note for note in answer.assumptions)


def test_the_search_divides_experts_unasked():
    answer = plan_training(question(model=MODEL, framework="megatron", gpus=8, sequence_length=128))
    degrees = {other.layout.expert_parallel for other in answer.alternatives}
    assert max(degrees | {answer.plan.layout.expert_parallel}) > 1


def activations(**changes) -> int:
    layout = {"data_parallel": 4, "expert_parallel": 4}
    return memory("megatron", model=MODEL, sequence_length=32, layout=layout, **changes).items.activations


def test_a_busier_rank_keeps_more_of_the_tokens_it_was_sent():
    # One layer has experts. Two experts' copies of 32 tokens: 2 x 64 features dispatched, 2 x 16 each of gate, up and
    # product, in 16 bits: 32 x (128 + 96) x 2 bytes once more, and the peak's transients of as many tokens.
    more = activations(expert_imbalance=2.0) - activations()
    assert more >= 32 * (128 + 96) * 2
    # Of four ranks none gets more than the tokens of all.
    assert activations(expert_imbalance=4.0) == activations(expert_imbalance=9.0)


@pytest.mark.parametrize("imbalance", [0.99, float("nan")])
def test_the_busiest_rank_is_not_below_the_mean(imbalance):
    with pytest.raises(InvalidQuestion) as caught:
        plan_training(question(model=MODEL, framework="megatron", expert_imbalance=imbalance))
    assert caught.value.pointer == "/training/expert_imbalance"


@pytest.mark.parametrize(("model", "degree"), [(MODEL, 3), (MODEL, 16), (None, 2)])
def test_experts_must_divide(model, degree):
    changes = {} if model is None else {"model": model}
    with pytest.raises(ImpossibleLayout) as caught:
        plan_training(question(framework="megatron", layout={"expert_parallel": degree}, **changes))
    assert caught.value.pointer == "/layout/expert_parallel"
