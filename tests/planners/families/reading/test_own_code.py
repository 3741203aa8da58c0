"""What transformers' code of a family keeps beyond Llama's, for layers of 64 features, each figure counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.architecture import ModelSpec, OperationKind
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.memory.activations import SavedBytes, saved_bytes
from plimsoll.planners.stacks.profile import load_profile

TRANSFORMERS, MEGATRON = load_profile("accelerate").kernels, load_profile("megatron").kernels
HIDDEN, INNER, VOCABULARY = 64, 256, 101
STATISTIC = 4  # a norm's, in fp32
STATISTICS = 4 * 4  # fp32, a head
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "max_position_embeddings": 64,
}  # fmt: skip
GPT_2 = {"vocab_size": VOCABULARY, "n_embd": HIDDEN, "n_layer": 2, "n_head": 4, "n_positions": 64}
OPT = {name: size for name, size in SIZES.items() if name not in ("intermediate_size", "head_dim")} | {"ffn_dim": INNER}


def model(model_type: str, sizes: dict[str, Any], **fields: Any) -> ModelSpec:
    return describe_config({"model_type": model_type, **sizes, **fields}, name="small")


def kept(spec: ModelSpec, kernels: Any = TRANSFORMERS) -> SavedBytes:
    return saved_bytes(spec.layers[0], kernels, attention="flash", element_bytes=2)


def test_gelu_in_separate_operations_keeps_four_tensors_beside_its_result() -> None:
    plain = kept(model("gpt2", GPT_2, activation_function="gelu"))
    # Input, half of it, hyperbolic tangent and one more than that, where a kernel keeps the input.
    assert kept(model("gpt2", GPT_2)).tensor_bytes - plain.tensor_bytes == 3 * 2 * INNER


def test_a_stack_with_kernels_of_its_own_keeps_gelu_s_input_alone() -> None:
    written, fused = model("gpt2", GPT_2), model("gpt2", GPT_2, activation_function="gelu")
    assert kept(written, MEGATRON) == kept(fused, MEGATRON)


def test_relu_keeps_its_result_which_the_next_matrix_keeps_too() -> None:
    # Query, key, value and context of 64, and the one tensor of 256; heads' statistics.
    assert kept(model("opt", OPT)).tensor_bytes == 2 * (4 * HIDDEN + INNER) + STATISTICS


def test_relu_s_result_stays_where_the_next_matrix_is_frozen() -> None:
    block = model("opt", OPT).layers[0]
    frozen = saved_bytes(block, TRANSFORMERS, attention="flash", element_bytes=2, learning=frozenset())
    assert frozen.tensor_bytes == 2 * (4 * HIDDEN + INNER) + STATISTICS


@pytest.mark.parametrize(("probability", "masks"), [(0.0, 0), (0.1, 2)])
def test_dropout_keeps_a_mask_of_a_byte_for_each_half(probability: float, masks: int) -> None:
    without = kept(model("gpt2", GPT_2, resid_pdrop=0.0)).sequence_bytes
    assert kept(model("gpt2", GPT_2, resid_pdrop=probability)).sequence_bytes - without == masks * HIDDEN


def test_dropout_left_out_of_a_config_is_its_class_s() -> None:
    assert kept(model("seed_oss", SIZES)) == kept(model("seed_oss", SIZES, residual_dropout=0.1))


def test_a_layer_norm_by_hand_keeps_the_difference_from_the_mean_twice() -> None:
    # One norm for both halves: two differences and the normalised in fp32, and its output in 16 bits.
    assert kept(model("cohere", SIZES)).sequence_bytes == (3 * 4 + 2) * HIDDEN + STATISTIC


def test_a_layer_norm_without_weights_keeps_its_input_in_fp32_alone() -> None:
    assert kept(model("olmo", SIZES)).sequence_bytes == 2 * ((4 + 2) * HIDDEN + STATISTIC)


@pytest.mark.parametrize(("norms", "tensors"), [("cohere", 3), ("olmo", 1), ("llama", 2)])
def test_autocast_has_all_of_a_norm_in_fp32(norms: str, tensors: int) -> None:
    block = model(norms, SIZES).head
    cast = saved_bytes(block, TRANSFORMERS, attention="flash", element_bytes=2, autocast=True)
    # The norm's tensors, and its output cast for the head's matrix.
    assert cast.sequence_bytes == (tensors * 4 + 2) * HIDDEN + STATISTIC


def test_a_cap_on_the_logits_keeps_a_tensor_as_wide_as_the_vocabulary() -> None:
    capped, plain = model("gemma2", SIZES).head, model("gemma2", SIZES, final_logit_softcapping=None).head
    with_cap, without = (
        saved_bytes(head, TRANSFORMERS, attention="flash", element_bytes=2) for head in (capped, plain)
    )
    assert with_cap.tensor_bytes - without.tensor_bytes == 2 * VOCABULARY


def test_clamped_experts_keep_seven_tensors() -> None:
    mixture = {"num_local_experts": 4, "num_experts_per_tok": 2}
    # Gate, clamped, sigmoid, product, other half and one more, and the result: of two experts for each token.
    assert kept(model("gpt_oss", SIZES, **mixture)).expert_bytes == 7 * 2 * 2 * INNER


def test_a_rotation_of_part_of_each_head_copies_the_attention_s_output() -> None:
    # Query and key rotated, the product of all three that the value is a view of, and the output twice; 256 twice.
    assert kept(model("gpt_neox", SIZES)).tensor_bytes == 2 * (2 + 3 + 2) * HIDDEN + 2 * 2 * INNER + STATISTICS


def test_gpt_2_s_eager_softmax_is_in_sixteen_bits_and_drops_scores_out() -> None:
    own = saved_bytes(model("gpt2", GPT_2).layers[0], TRANSFORMERS, attention="eager", element_bytes=2)
    # The softmax's result, a mask of a byte and what is left, for each of four heads.
    assert own.score_bytes == 4 * (2 + 1 + 2)


def test_gemma_2_caps_its_scores_where_the_config_does_not_say_otherwise() -> None:
    capped, plain = (
        saved_bytes(model("gemma2", SIZES, **said).layers[0], TRANSFORMERS, attention="eager", element_bytes=2)
        for said in ({}, {"attn_logit_softcapping": None})
    )
    assert capped.score_bytes - plain.score_bytes == 4 * 2


def test_granite_4_scales_what_it_adds_to_the_stream() -> None:
    block = describe_config(dict(catalogue().model("ibm-granite/granite-4.0-h-tiny").config), name="hybrid").layers[0]
    assert [op.is_scaled for op in block.operations if op.kind is OperationKind.ADD] == [True, True]
    assert not any(op.is_scaled for op in model("llama", SIZES).layers[0].operations)


def test_nemotron_3_weighs_its_experts_outputs_in_fp32() -> None:
    config = dict(catalogue().model("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16").config)
    mixture = next(block for block in describe_config(config, name="mixture").layers if block.kind == "experts_layer")
    assert [op.name for op in mixture.operations if op.in_fp32] == ["router", "combine"]


def test_minimax_m2_joins_what_it_rotates_with_what_it_does_not() -> None:
    block = describe_config(dict(catalogue().model("MiniMaxAI/MiniMax-M2").config), name="mixture").layers[0]
    assert [op.concatenates for op in block.operations if op.kind is OperationKind.ROTARY] == [True]
    assert not any(op.in_fp32 for op in block.operations if op.name == "router")
