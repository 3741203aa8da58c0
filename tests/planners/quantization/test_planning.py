"""Which weights a scheme quantizes, and the model's bytes before and after."""

import dataclasses
from contextlib import nullcontext

import pytest

from plimsoll.planners.architecture import Part, Split, Weight
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidQuestion, NotYetAvailable, UnknownName
from plimsoll.planners.quantization.planning import (
    check_writable,
    quantization_estimate,
    scheme_settings,
    skip_reason,
)
from plimsoll.planners.quantization.stacks import matrix_shape

LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
# q and o 4096², k and v 1024 x 4096, three matrices of the feed-forward: 218,103,808 a layer.
LLAMA_8B_LAYER_LINEAR = 2 * 4096**2 + 2 * 1024 * 4096 + 3 * 4096 * 14336
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257}


def spec(config=LLAMA_8B, **changes):
    return describe_config({**config, **changes}, name="test")


def estimated(model, scheme, *, original_dtype="bf16", **options):
    return quantization_estimate(scheme_settings(scheme, **options), model, original_dtype=original_dtype)


def matrix(**changes):
    base = {"name": "x.weight", "shape": (8, 4), "part": Part.FEED_FORWARD, "is_linear": True}
    return Weight(**{**base, **changes})


def test_llama_8b_in_nf4_keeps_embedding_head_and_norms():
    estimate = estimated(spec(), "nf4")
    assert estimate.quantized_parameters == 32 * LLAMA_8B_LAYER_LINEAR
    assert {(each.name, each.tensors, each.reason) for each in estimate.skipped} == {
        ("model.embed_tokens.weight", 1, "embedding"),
        ("model.layers.*.input_layernorm.weight", 32, "norm"),
        ("model.layers.*.post_attention_layernorm.weight", 32, "norm"),
        ("model.norm.weight", 1, "norm"),
        ("lm_head.weight", 1, "output head"),
    }


def test_llama_8b_in_nf4_takes_its_bytes_exactly():
    estimate = estimated(spec(), "nf4")
    # Every matrix is a multiple of 64, so 0.5625 byte each; two vocabularies and 65 norms of 4096 stay bf16.
    kept = 2 * (2 * 128_256 * 4096 + 65 * 4096)
    assert estimate.quantized_bytes == 32 * LLAMA_8B_LAYER_LINEAR * 9 // 16 + kept
    assert estimate.original_bytes == 2 * 8_030_261_248
    assert estimate.bits_per_quantized_parameter == 4.5


def test_the_average_bits_count_what_is_left_alone():
    estimate = estimated(spec(), "nf4", double_quantization=True)
    # 6,979,321,856 at 4.127 bits and 1,050,939,392 at 16 bits -> 5.681.
    assert estimate.bits_per_parameter == pytest.approx(5.681, abs=1e-3)
    assert estimate.bits_per_quantized_parameter == pytest.approx(4.127, abs=1e-3)


def test_a_tied_head_counts_once_as_the_embedding():
    estimate = estimated(spec(tie_word_embeddings=True), "nf4")
    assert [each.name for each in estimate.skipped if each.reason in ("embedding", "output head")] == [
        "model.embed_tokens.weight"
    ]
    assert estimate.parameters == 8_030_261_248 - 128_256 * 4096


def test_biases_are_left_alone():
    estimate = estimated(spec(GPT2), "nf4")
    reasons = {each.name: each.reason for each in estimate.skipped}
    assert reasons["transformer.h.*.attn.c_attn.bias"] == "bias"
    assert reasons["transformer.wpe.weight"] == "embedding"
    # 12 layers of 12 x 768² in matrices.
    assert estimate.quantized_parameters == 12 * 12 * 768**2


def test_gpt2_matrices_have_one_int8_scale_for_each_output_feature():
    estimate = estimated(spec(GPT2), "int8-channel")
    # c_attn 2304, c_proj 768, c_fc 3072 and c_proj 768 output features.
    scales = 12 * 4 * (2304 + 768 + 3072 + 768)
    skipped = sum(each.bytes for each in estimate.skipped)
    assert estimate.quantized_bytes - skipped == 12 * 12 * 768**2 + scales


@pytest.mark.parametrize(
    ("split", "dim", "shape", "expected"),
    [
        (Split.COLUMN, 0, (8, 4), (8, 4)),
        (Split.COLUMN, 1, (4, 8), (8, 4)),
        (Split.ROW, 1, (8, 4), (8, 4)),
        (Split.ROW, 0, (4, 8), (8, 4)),
        (Split.REPLICATED, None, (8, 4), (8, 4)),
        (Split.COLUMN, 1, (3, 8, 4), (3, 8, 4)),
        (Split.COLUMN, 2, (3, 4, 8), (3, 8, 4)),
        (Split.ROW, 2, (3, 8, 4), (3, 8, 4)),
        (Split.ROW, 1, (3, 4, 8), (3, 8, 4)),
    ],
)
def test_a_matrix_is_turned_to_output_by_input_features(split, dim, shape, expected):
    assert matrix_shape(matrix(split=split, dim=dim, shape=shape)) == expected


@pytest.mark.parametrize("scheme", ["nf4", "fp4", "int8-channel"])
def test_bitsandbytes_leaves_experts_alone(scheme):
    reason = skip_reason(matrix(part=Part.EXPERT, experts=8), scheme)
    assert reason is not None
    assert "fused" in reason


@pytest.mark.parametrize("scheme", ["int8", "int8-group", "fp8", "int4", "mxfp4"])
def test_other_schemes_quantize_experts(scheme):
    assert skip_reason(matrix(part=Part.EXPERT, experts=8), scheme) is None


def test_the_experts_of_a_mixture_are_counted_each_once():
    model = spec(
        {
            "model_type": "mixtral", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000, "num_local_experts": 4,
            "num_experts_per_tok": 2,
        }
    )  # fmt: skip
    estimate = estimated(model, "int8")
    left_alone = sum(each.parameters for each in estimate.skipped)
    assert estimate.quantized_parameters + left_alone == model.parameters
    # Attention 4 x 128² and four experts of 3 x 128 x 256, in two layers.
    assert estimate.quantized_parameters == 2 * (4 * 128**2 + 4 * 3 * 128 * 256)


def test_routers_and_convolutions_are_left_alone():
    assert skip_reason(matrix(part=Part.ROUTER), "int4") == "expert router"
    assert skip_reason(matrix(part=Part.RECURRENT, is_linear=False), "nf4") == "not the matrix of a linear layer"


def test_a_block_size_without_effect_is_named():
    settings = scheme_settings("mxfp4", block_size=64, double_quantization=True)
    assert (settings.block_size, settings.double_quantization) == (32, False)
    assert len(settings.notes) == 2
    (said,) = scheme_settings("int8", block_size=64).notes
    assert "has no blocks" in said


def test_settings_that_hold_have_no_notes():
    assert scheme_settings("nf4", double_quantization=True, block_size=128).notes == ()
    assert scheme_settings("mxfp4", block_size=32).notes == ()
    assert scheme_settings("int4").block_size == 128


def test_notes_and_the_models_assumptions_reach_the_estimate():
    model = dataclasses.replace(spec(), assumptions=("guessed",))
    assert estimated(model, "int8", block_size=64).assumptions == (
        "guessed",
        "block_size has no effect on int8, which has no blocks.",
    )


def test_original_bytes_follow_the_dtype():
    assert estimated(spec(), "int8", original_dtype="fp32").original_bytes == 4 * 8_030_261_248


def test_questions_without_sense_are_refused():
    with pytest.raises(UnknownName, match="nf4"):
        estimated(spec(), "nf5")
    with pytest.raises(InvalidQuestion, match="plain dtype"):
        estimated(spec(), "bf16")
    with pytest.raises(InvalidQuestion, match="not one of"):
        estimated(spec(), "nf4", original_dtype="int8")
    with pytest.raises(InvalidQuestion, match="not possible"):
        estimated(spec(), "nf4", block_size=48)
    with pytest.raises(NotYetAvailable, match="nvfp4"):
        estimated(spec(), "nvfp4")


def test_the_skip_reason_are_those_the_estimate_counts():
    model = spec(num_hidden_layers=2)
    names = [name for name, weight in model.named_weights() if skip_reason(weight, "nf4") is None]
    assert names[0] == "model.layers.0.self_attn.q_proj.weight"
    assert names[-1] == "model.layers.1.mlp.down_proj.weight"
    assert len(names) == len(set(names)) == 2 * 7


@pytest.mark.parametrize(("scheme", "block_size"), [("nf4", None), ("fp8", None), ("int8-channel", None), ("int4", 64)])
def test_a_llama_can_be_written_in_every_scheme(scheme, block_size):
    check_writable(scheme_settings(scheme, block_size=block_size), spec())


def test_groups_are_written_whole_alone():
    # 14,400 inputs are 112.5 groups of 128 and 450 of 32.
    odd = spec(intermediate_size=14_400)
    check_writable(scheme_settings("mxfp4"), odd)
    check_writable(scheme_settings("nf4"), odd)
    with pytest.raises(NotYetAvailable, match="14400 input features, which are no whole groups of 128") as caught:
        check_writable(scheme_settings("int4"), odd)
    assert caught.value.pointer == "/output"


@pytest.mark.parametrize(
    ("scheme", "is_written"), [("int4", False), ("int8", False), ("int8-group", True), ("fp8", True)]
)
def test_experts_are_written_in_what_engines_read_of_experts(scheme, is_written):
    mixtral = spec({**LLAMA_8B, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2})
    with nullcontext() if is_written else pytest.raises(NotYetAvailable, match=r"experts\.\*.* is an expert's"):
        check_writable(scheme_settings(scheme), mixtral)


def test_matrices_the_other_way_round_are_not_written():
    with pytest.raises(NotYetAvailable, match=r"c_attn\.weight") as caught:
        check_writable(scheme_settings("fp8"), spec(GPT2))
    assert caught.value.pointer == "/output"
