"""What each stack leaves alone, and whole checkpoints to the byte as they were published."""

from __future__ import annotations

import math

import pytest

from plimsoll.planners.architecture import ModelSpec, Part, Split, Weight
from plimsoll.planners.catalogue import Catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.formats import STORAGE_SCHEMES
from plimsoll.planners.ground.errors import UnknownName
from plimsoll.planners.quantization.stacks import (
    BY_EVERY_STACK,
    QUANTIZED_STACKS,
    STACK_OF_SCHEME,
    checkpoint_bytes,
    matrix_shape,
    quantized_stack,
    weight_bytes,
)

CATALOGUE = Catalogue()


def catalogued(name: str) -> ModelSpec:
    return describe_config(CATALOGUE.model(name).config, name=name)


def matrix(shape: tuple[int, ...] = (256, 512), **changes) -> Weight:
    base = {"name": "x.weight", "shape": shape, "part": Part.FEED_FORWARD, "split": Split.COLUMN, "dim": 0}
    return Weight(**{**base, "is_linear": True, **changes})


@pytest.mark.parametrize(
    ("model", "stack", "published"),
    [
        # metadata.total_size of openai/gpt-oss-20b and -120b, model.safetensors.index.json.
        ("openai/gpt-oss-20b", "gpt-oss-mxfp4", 13_761_264_768),
        ("openai/gpt-oss-120b", "gpt-oss-mxfp4", 65_248_815_744),
        # metadata.total_size of hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4, nine files.
        ("meta-llama/Llama-3.1-70B-Instruct", "awq", 39_767_785_472),
        # Sums of the safetensors headers' data_offsets: RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic and
        # -quantized.w4a16, nvidia/Llama-3.3-70B-Instruct-FP4, RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16.
        ("meta-llama/Llama-3.1-8B-Instruct", "compressed-tensors-fp8-dynamic", 9_083_953_152),
        ("meta-llama/Llama-3.1-8B-Instruct", "autogptq", 5_735_587_840),
        ("meta-llama/Llama-3.3-70B-Instruct", "modelopt-nvfp4", 42_709_045_632),
        ("meta-llama/Llama-3.3-70B-Instruct", "compressed-tensors-w4a16-ordered", 39_525_311_232),
        # Elements by dtype on the page of Qwen/Qwen3-32B-FP8: 1,558,406,144 of bf16 and 31,205,621,760 of fp8.
        ("Qwen/Qwen3-32B", "qwen-fp8", 2 * 1_558_406_144 + 31_205_621_760),
    ],
)
def test_published_checkpoints_are_exact_to_the_byte(model: str, stack: str, published: int):
    assert checkpoint_bytes(catalogued(model), quantized_stack(stack)) == published


@pytest.mark.parametrize("stack", sorted(QUANTIZED_STACKS))
@pytest.mark.parametrize("part", sorted(BY_EVERY_STACK))
def test_no_stack_quantizes_embeddings_heads_norms_or_routers(stack: str, part: Part):
    assert QUANTIZED_STACKS[stack].reason_to_leave(matrix(part=part)) == BY_EVERY_STACK[part]


@pytest.mark.parametrize("stack", sorted(QUANTIZED_STACKS))
def test_every_stack_leaves_what_is_no_matrix_and_has_a_source(stack: str):
    chosen = QUANTIZED_STACKS[stack]
    assert chosen.source
    assert chosen.reason_to_leave(matrix(part=Part.EXPERT, is_linear=False)) is not None
    assert chosen.reason_to_leave(matrix(part=Part.RECURRENT, is_linear=False)) is not None


def test_a_bias_is_named_as_one():
    bias = matrix(shape=(256,), name="x.bias", is_linear=False)
    assert quantized_stack("awq").reason_to_leave(bias) == "bias"


@pytest.mark.parametrize(
    ("stack", "attention", "experts"),
    [
        ("bitsandbytes-nf4", True, False),
        ("bitsandbytes-int8", True, False),
        ("bitsandbytes-nf4-fused", True, True),
        ("awq", True, True),
        ("fp8-on-loading", True, True),
        ("compressed-tensors-w8a8", True, True),
        ("gpt-oss-mxfp4", False, True),
        ("compressed-tensors-mxfp4", True, True),
    ],
)
def test_stacks_differ_in_experts_and_attention(stack: str, attention: bool, experts: bool):
    chosen = quantized_stack(stack)
    assert (chosen.reason_to_leave(matrix(part=Part.ATTENTION)) is None) is attention
    assert (chosen.reason_to_leave(matrix(part=Part.EXPERT, experts=8)) is None) is experts


@pytest.mark.parametrize(
    ("stack", "expected"),
    # 131,072 elements, [256, 512]: 256 rows, 1,024 groups of 128, 2,048 blocks of 64, 2 x 4 tiles.
    [
        ("fp8-on-loading", 131_072 + 4),
        ("modelopt-fp8", 131_072 + 8),
        ("compressed-tensors-fp8-dynamic", 131_072 + 256 * 2),
        ("compressed-tensors-w8a8", 131_072 + 256 * 2),
        ("w8a8-wide-scales", 131_072 + 256 * 4),
        ("bitsandbytes-int8", 131_072 + 256 * 4),
        ("deepseek-fp8", 131_072 + 8 * 4),
        ("qwen-fp8", 131_072 + 8 * 2),
        ("awq", 65_536 + 1024 * 2 + 512),
        ("gptq", 65_536 + 1024 * 2 + 512 + 512 * 4),
        ("autogptq", 65_536 + 1024 * 2 + 512 + 512 * 4 + 256 * 2),
        ("compressed-tensors-w4a16", 65_536 + 1024 * 2 + 16),
        ("compressed-tensors-w4a16-ordered", 65_536 + 1024 * 2 + 16 + 512 * 4),
        ("bitsandbytes-nf4", 65_536 + 2048 * 4),
        # 2,048 scales of a byte, 8 of 4 bytes for blocks of 256 of them, and the mean.
        ("bitsandbytes-nf4-double", 65_536 + 2048 + 8 * 4 + 4),
        ("compressed-tensors-mxfp4", 131_072 * 17 // 32),
        ("modelopt-nvfp4", 65_536 + 131_072 // 16 + 8),
    ],
)
def test_a_matrix_takes_its_bytes_in_every_stack(stack: str, expected: int):
    assert weight_bytes(matrix(), quantized_stack(stack), kept_bytes=2) == expected


def test_tiles_at_the_edge_have_a_scale_of_their_own():
    # 129 x 300: 2 x 3 tiles.
    assert quantized_stack("deepseek-fp8").matrix_bytes((129, 300)) == 129 * 300 + 6 * 4


def test_fused_experts_have_scales_each():
    # Two experts of [input 300, output 129]: turned to [2, 129, 300], 2 x 6 tiles.
    fused = matrix(shape=(2, 300, 129), part=Part.EXPERT, dim=2, experts=2, is_fused=True)
    assert matrix_shape(fused) == (2, 129, 300)
    assert weight_bytes(fused, quantized_stack("deepseek-fp8"), kept_bytes=2) == 2 * 129 * 300 + 12 * 4
    # A 32-bit group index for each of 2 x 300 inputs; 129 rows of 3 groups with 16 + 4 bits of scale and zero each.
    gptq = weight_bytes(fused, quantized_stack("gptq"), kept_bytes=2)
    assert gptq == 129 * 300 + 2 * 129 * 3 * 2 + math.ceil(2 * 129 * 3 / 2) + 2 * 300 * 4


def test_a_shard_has_its_own_scales():
    half = weight_bytes(matrix(), quantized_stack("w8a8-wide-scales"), kept_bytes=2, shape=(128, 512))
    assert half == 128 * 512 + 128 * 4


def test_what_is_left_alone_keeps_its_dtype():
    norm = Weight(name="norm.weight", shape=(512,), part=Part.NORM)
    assert weight_bytes(norm, quantized_stack("awq"), kept_bytes=4) == 2048


def test_every_quantizing_scheme_follows_a_stack():
    quantizing = {name for name, scheme in STORAGE_SCHEMES.items() if scheme.scale_bits or scheme.tensor_scale_bytes}
    assert set(STACK_OF_SCHEME) == quantizing
    assert all(stack.storage == STORAGE_SCHEMES[name] for name, stack in STACK_OF_SCHEME.items())


def test_an_unknown_stack_lists_the_near_ones():
    with pytest.raises(UnknownName, match="autogptq"):
        quantized_stack("auto-gptq")


def test_kimi_k2_5_is_as_large_as_its_files():
    # 595 GB, as VentureBeat and others report the repository; the model card says int4 experts in groups of 32.
    total = checkpoint_bytes(catalogued("moonshotai/Kimi-K2.5"), quantized_stack("compressed-tensors-int4-experts"))
    assert total == pytest.approx(595e9, rel=1e-3)


def test_deepseek_v4_holds_experts_in_4_bits_and_the_rest_in_8():
    # 256 x 512: blocks of 32 with a byte each are 65,536 + 4,096; tiles of 128 x 128 are 131,072 + 2 x 4 scales.
    stack = quantized_stack("deepseek-mxfp4-fp8")
    assert weight_bytes(matrix(part=Part.EXPERT), stack, kept_bytes=2) == 69_632
    assert weight_bytes(matrix(part=Part.ATTENTION), stack, kept_bytes=2) == 131_080


@pytest.mark.parametrize(
    ("stack", "reason"),
    [("bitsandbytes-nf4", None), ("bitsandbytes-int8", None), ("awq", "vision tower"), ("gptq", "vision tower")],
)
def test_transformers_with_bitsandbytes_alone_quantizes_vision_towers(stack: str, reason: str | None):
    assert quantized_stack(stack).reason_to_leave(matrix(part=Part.VISION)) == reason


@pytest.mark.parametrize("name", ["block.{layer}.layer.1.DenseReluDense.wo.weight", "x.indexer.weights_proj.weight"])
def test_bitsandbytes_leaves_what_transformers_keeps_in_full_precision(name: str):
    assert quantized_stack("bitsandbytes-nf4").reason_to_leave(matrix(name=name)) is not None
    assert quantized_stack("bitsandbytes-nf4-fused").reason_to_leave(matrix(name=name)) is None
