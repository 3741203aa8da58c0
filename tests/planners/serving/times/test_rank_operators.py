"""Tests of a rank's operators: which products, experts and exchanges they are, listed by hand."""

from __future__ import annotations

import dataclasses

import pytest

from plimsoll.planners.architecture import Part
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.operators.experts import experts
from plimsoll.planners.operators.products import products
from plimsoll.planners.operators.routing import touched
from plimsoll.planners.serving.formats.operand_formats import operand_formats
from plimsoll.planners.serving.formats.weight_format import WEIGHT_FORMATS
from plimsoll.planners.serving.times.curve import SIZES
from plimsoll.planners.serving.times.rank_operators import (
    ROUTING,
    Rank,
    dense_operators,
    expert_operators,
    head_seconds,
    within_blocks_seconds,
)
from tests.planners.serving.factories import H100, LLAMA_8B, MIXTRAL, model

DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2", "vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
    "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
    "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "max_position_embeddings": 163840,
}  # fmt: skip


def rank(
    config=LLAMA_8B, *, weights="bf16", tensor_parallel=1, has_scale_blocks=False, gpu=H100, engine="vllm"
) -> Rank:
    served = WEIGHT_FORMATS[weights]
    return Rank(
        model=ByIdentity(model(config)),
        gpu=ByIdentity(gpu),
        operators_engine=engine,
        release="0.24",
        weights=served,
        formats=operand_formats(served, gpu, has_scale_blocks=has_scale_blocks),
        tensor_parallel=tensor_parallel,
    )


def product_seconds(shapes, number_format="bfloat16"):
    kernel = products(H100, "vllm", number_format)
    return sum(times * kernel.seconds(SIZES, outputs, inputs) for outputs, inputs, times in shapes)


@pytest.mark.parametrize(
    ("tensor_parallel", "shapes"),
    [
        # Queries, keys and values at once: (32 + 8 + 8) x 128; gate and up: 2 x 14,336.
        (1, [(6144, 4096, 32), (4096, 4096, 32), (28672, 4096, 32), (4096, 14336, 32)]),
        (4, [(1536, 4096, 32), (4096, 1024, 32), (7168, 4096, 32), (4096, 3584, 32)]),
        # 16 ranks share 8 heads of keys: each has 2 of queries and a copy of one of keys and one of values.
        (16, [(512, 4096, 32), (4096, 256, 32), (1792, 4096, 32), (4096, 896, 32)]),
    ],
)
def test_products_of_one_input_are_one_product(tensor_parallel, shapes):
    found = dense_operators(rank(tensor_parallel=tensor_parallel))
    # Small kernels a token and layer: two norms of 4 x 4,096 elements, the activation of 3 x 14,336 and the rotation of
    # 3 x 4,096 on all ranks together, 2 B each.
    divided = (3 * 14336 + 3 * 4096) / tensor_parallel
    small = SIZES * 32 * 2 * (2 * 4 * 4096 + divided) / 3.35e12
    assert found.seconds == pytest.approx(product_seconds(shapes) + small, rel=1e-9)
    # Four products, two norms, a rotation and an activation.
    assert found.kernels == 32 * 8


def test_quantized_weights_are_timed_as_such_and_the_head_is_not():
    found, plain = dense_operators(rank(weights="fp8")), dense_operators(rank())
    shapes = [(6144, 4096, 32), (4096, 4096, 32), (28672, 4096, 32), (4096, 14336, 32)]
    assert plain.seconds - found.seconds == pytest.approx(product_seconds(shapes) - product_seconds(shapes, "fp8"))
    assert head_seconds(rank(weights="fp8")) == pytest.approx(product_seconds([(128256, 4096, 1)]))


def test_what_a_format_leaves_alone_is_timed_plain():
    # Only the experts of a gpt-oss checkpoint are in 4 bits.
    config = {
        "model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
        "num_hidden_layers": 2, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "max_position_embeddings": 131072,
    }  # fmt: skip
    plain, quantized = dense_operators(rank(config)), dense_operators(rank(config, weights="mxfp4"))
    assert quantized.seconds == pytest.approx(plain.seconds)


def test_weights_of_32_bits_take_twice_as_long():
    found, plain = dense_operators(rank(weights="fp32")), dense_operators(rank())
    shapes = [(6144, 4096, 32), (4096, 4096, 32), (28672, 4096, 32), (4096, 14336, 32)]
    assert found.seconds - plain.seconds == pytest.approx(product_seconds(shapes))


def test_latents_are_brought_down_at_once_and_up_by_attention():
    # A layer: queries of 16 x 192 by themselves, latents of 512 + 64, the output of 16 x 128; the router, 2 shared
    # experts as one; the first layer's feed-forward instead. The latent's up-projection is attention's.
    shapes = [
        (3072, 2048, 27), (576, 2048, 27), (2048, 2048, 27), (64, 2048, 26), (2 * 2816, 2048, 26), (2048, 2816, 26),
        (2 * 10944, 2048, 1), (2048, 10944, 1),
    ]  # fmt: skip
    found = dense_operators(rank(DEEPSEEK_V2_LITE))
    assert found.seconds[0] == pytest.approx(product_seconds(shapes)[0], rel=0.02)


def test_a_mixtures_experts_are_priced_by_those_that_are_touched():
    kernel = experts(H100, "vllm", "bfloat16")
    local = touched(SIZES, 8, 2, routing=ROUTING)
    whole = expert_operators(rank(MIXTRAL), 1, 1)
    assert whole is not None
    assert whole.seconds == pytest.approx(32 * kernel.seconds(local, 2 * SIZES, 4096, 14336))
    assert whole.kernels == 64
    dealt, divided = expert_operators(rank(MIXTRAL), 2, 1), expert_operators(rank(MIXTRAL), 1, 2)
    assert dealt is not None
    assert divided is not None
    assert dealt.seconds == pytest.approx(32 * kernel.seconds(local / 2, SIZES, 4096, 14336))
    assert divided.seconds == pytest.approx(32 * kernel.seconds(local, 2 * SIZES, 4096, 7168))


def test_a_release_that_walks_a_tile_for_every_expert_does_so_for_a_single_token():
    # vLLM 0.12 on Hopper, scales by blocks: the touched of 8 experts, tiles without rows of the others from the cache,
    # and 8 x 128 rows around their products.
    walking = dataclasses.replace(rank(MIXTRAL, weights="fp8", has_scale_blocks=True), release="0.12")
    kernel = experts(H100, "vllm", "fp8_block", kernels=("deepgemm", "cutlass", "triton"))
    rows = 8 * 128 * (3 * 4096 + 10 * 14336) / 3.35e12
    local = touched(SIZES, 8, 2, routing=ROUTING)
    cached = (8 - local) * 6 * 4096 * 14336 / (0.7 * 5120 * 1.98e9)
    found = expert_operators(walking, 1, 1)
    assert found is not None
    assert found.seconds == pytest.approx(32 * (kernel.seconds(local, 2 * SIZES, 4096, 14336) + cached + rows))
    # Others read what is touched: 2 of 8 for one token.
    later = expert_operators(dataclasses.replace(walking, release="0.24"), 1, 1)
    assert later is not None
    assert later.seconds[0] < found.seconds[0] / 2


def test_a_model_without_experts_has_none():
    assert expert_operators(rank(), 1, 1) is None


@pytest.mark.parametrize("listed", catalogue().models, ids=lambda listed: listed.id)
def test_no_step_of_a_known_model_is_faster_than_reading_its_matrices(listed):
    described = describe_config(listed.config, name=listed.id)
    one = Rank(
        model=ByIdentity(described),
        gpu=ByIdentity(H100),
        operators_engine="vllm",
        release="0.24",
        weights=WEIGHT_FORMATS["bf16"],
        formats=operand_formats(WEIGHT_FORMATS["bf16"], H100, has_scale_blocks=False),
        tensor_parallel=1,
    )
    # Experts, what makes keys of latents, towers before the decoder and layers that wait for images are not in it.
    read = sum(
        2 * weight.elements * block.repeats
        for block in described.layers
        for weight in block.weights
        if block.operations
        and weight.is_linear
        and weight.experts == 1
        and weight.part is not Part.VISION
        and "kv_b_proj" not in weight.name
    )
    assert dense_operators(one).seconds[0] + within_blocks_seconds(one, 1.0) > read / 3.35e12
