"""Tests of attention's seconds, listed layer by layer from the measured kernels."""

from __future__ import annotations

import dataclasses

import pytest

from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.operators.absorbed import absorbed_products
from plimsoll.planners.operators.attention import prompt_attention, token_attention
from plimsoll.planners.operators.latent import latent_prompt_attention, latent_token_attention
from plimsoll.planners.operators.products import products
from plimsoll.planners.operators.recurrent import TOKEN, recurrence
from plimsoll.planners.operators.sparse_latent import DEEPSEEK, sparse_block
from plimsoll.planners.serving.cache.kv_formats import KV_FORMATS
from plimsoll.planners.serving.times.attention_seconds import (
    CachedRank,
    attention_evidence,
    prompt_seconds,
    token_seconds,
)
from plimsoll.planners.serving.times.curve import SIZES
from plimsoll.planners.serving.times.rank_operators import dense_operators
from tests.planners.serving.factories import H100, LLAMA_8B, hybrid, model
from tests.planners.serving.times.test_rank_operators import DEEPSEEK_V2_LITE, rank

QWEN3_NEXT = {
    "model_type": "qwen3_next", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5120,
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "max_position_embeddings": 262144,
}  # fmt: skip

# DeepSeek-V3.2's attention in three dense layers.
DEEPSEEK_V32 = {
    "model_type": "deepseek_v32", "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "num_hidden_layers": 3, "num_attention_heads": 128, "num_key_value_heads": 128,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048, "max_position_embeddings": 163840,
}  # fmt: skip

MAMBA2 = model(
    {
        "model_type": "mamba2", "vocab_size": 32768, "hidden_size": 4096, "num_hidden_layers": 2, "state_size": 128,
        "num_heads": 128, "head_dim": 64, "n_groups": 8, "expand": 2, "conv_kernel": 4,
    }
)  # fmt: skip


def cached(config=LLAMA_8B, *, cache="bf16", context_parallel=1, **changes) -> CachedRank:
    return CachedRank(rank=rank(config, **changes), cache=KV_FORMATS[cache], decode_context_parallel=context_parallel)


def test_a_token_looks_back_in_every_layer():
    kernel = token_attention(H100, "vllm", 128)
    assert token_seconds(cached(), 4096) == pytest.approx(32 * kernel.seconds(SIZES, 4096, 32, 8))


def test_tensor_ranks_divide_the_heads_and_share_those_of_keys():
    kernel = token_attention(H100, "vllm", 128)
    found = token_seconds(cached(tensor_parallel=16), 4096)
    assert found == pytest.approx(32 * kernel.seconds(SIZES, 4096, 2, 1))


def test_ranks_that_share_a_sequence_look_back_on_a_part_each_for_all_their_queries():
    kernel = token_attention(H100, "vllm", 128)
    found = token_seconds(cached(tensor_parallel=16, context_parallel=2), 4096)
    assert found == pytest.approx(32 * kernel.seconds(SIZES, 2048, 4, 1))


def test_a_cache_in_eight_bits_is_read_in_half_the_time():
    wide, narrow = token_seconds(cached(), 32768), token_seconds(cached(cache="fp8"), 32768)
    assert 1.4 < wide[8] / narrow[8] < 2.6


def test_no_token_looks_further_back_than_its_window():
    kernel, plain = token_attention(H100, "vllm", 128), cached()
    spec = hybrid(full=1, sliding=3, window=1024)
    windowed = dataclasses.replace(plain, rank=dataclasses.replace(plain.rank, model=ByIdentity(spec)))
    expected = kernel.seconds(SIZES, 8192, 32, 8) + 3 * kernel.seconds(SIZES, 1024, 32, 8)
    assert token_seconds(windowed, 8192) == pytest.approx(expected)


def test_a_token_over_latents_goes_down_to_their_width_and_up_again():
    kernel, absorbed = latent_token_attention(H100, "vllm"), absorbed_products(H100, "vllm")
    assert kernel is not None
    assert absorbed is not None
    expected = 27 * (kernel.seconds(SIZES, 4096, 16) + absorbed.seconds(SIZES, 16))
    assert token_seconds(cached(DEEPSEEK_V2_LITE), 4096) == pytest.approx(expected)


def test_latents_of_other_sizes_than_the_measured_are_multiplied_as_one_product():
    kernel, up = latent_token_attention(H100, "vllm"), products(H100, "vllm", "bfloat16")
    assert kernel is not None
    # 16 heads of 192 + 256 features out of a latent of 512.
    expected = 27 * (kernel.seconds(SIZES, 4096, 16) + up.seconds(SIZES, 16 * 448, 512))
    wide = {**DEEPSEEK_V2_LITE, "qk_nope_head_dim": 192, "v_head_dim": 256}
    assert token_seconds(cached(wide), 4096) == pytest.approx(expected)


def test_a_whole_block_of_sparse_attention_stands_for_its_products_and_its_indexer():
    block = sparse_block(H100, "vllm", DEEPSEEK, "fp8_block", "fp8")
    assert block is not None
    one = cached(DEEPSEEK_V32, cache="fp8", weights="fp8", has_scale_blocks=True, tensor_parallel=8)
    assert token_seconds(one, 8192) == pytest.approx(3 * block.seconds(SIZES, 8192, 16))
    # A layer's feed-forward is left, and two norms and an activation beside: all three layers are dense.
    assert dense_operators(one.rank).kernels == 3 * (2 + 2 + 1)
    evidence, is_measured = attention_evidence(one)
    assert [each.operator for each in evidence] == ["sparse_token_block"]
    assert is_measured


def test_a_prompt_through_sparse_attention_has_its_products_beside_the_cards_rates():
    one = cached(DEEPSEEK_V32, cache="fp8", weights="fp8", has_scale_blocks=True, tensor_parallel=8)
    kernel = products(H100, "vllm", "fp8_block")
    # On one rank of 8: latents of 1,536 and 576 and the indexer's key and weights, then 16 heads of 192 and the
    # indexer's 64 queries of 128, and the output's 16 values of 128.
    shapes = [(1536 + 576 + 128 + 64, 7168), (16 * 192, 1536), (64 * 128, 1536), (7168, 16 * 128)]
    multiplied = 3 * sum(float(kernel.seconds(4096, *shape)) for shape in shapes)
    # 4,096 tokens look back on 2,048.5 positions on average, all of which the indexer scores; the attention looks at no
    # more than 2,048: (2,048 x 2,049 / 2 + 2,048 x 2,048) / 4,096 = 1,536.25.
    scored = 4096 * 2 * 64 * 129 * 2048.5 / 1979e12 / 0.4
    attended = 4096 * 2 * 16 * 320 * 1536.25 / 989.4e12 / 0.6
    assert prompt_seconds(one, 4096, 4096) == pytest.approx(multiplied + 3 * (scored + attended), rel=0.001)


def test_short_prompts_are_attended_to_together():
    kernel = prompt_attention(H100, "vllm", 128)
    # 8 prompts of 1,024 tokens fill a batch of 8,192.
    assert prompt_seconds(cached(), 1024, 8192) == pytest.approx(32 * float(kernel.seconds(8, 1024, 32, 8)) / 8)
    assert prompt_seconds(cached(), 16384, 8192) == pytest.approx(32 * float(kernel.seconds(1, 16384, 32, 8)))


def test_a_prompts_latents_are_written_out_as_keys_and_values():
    kernel, up = latent_prompt_attention(H100, "vllm"), products(H100, "vllm", "bfloat16")
    assert kernel is not None
    expected = 27 * (float(kernel.seconds(1, 8192, 16)) + float(up.seconds(8192, 16 * 256, 512)))
    assert prompt_seconds(cached(DEEPSEEK_V2_LITE), 8192, 8192) == pytest.approx(expected)


def test_a_recurrence_costs_the_same_at_every_context():
    kernel, attention = recurrence(H100, "vllm", "gated_delta", TOKEN), token_attention(H100, "vllm", 256)
    assert kernel is not None
    # Three layers of four are recurrent, with 32 heads of values.
    for context in (1000, 100_000):
        expected = 3 * kernel.seconds(SIZES, 1, 32) + attention.seconds(SIZES, context, 16, 2)
        assert token_seconds(cached(QWEN3_NEXT), context) == pytest.approx(expected)


def test_what_attention_rests_on_is_told():
    evidence, is_measured = attention_evidence(cached())
    assert [(each.operator, each.card) for each in evidence] == [("token_attention", "h100-sxm-80gb")]
    assert is_measured


def test_what_no_table_holds_is_priced_by_the_cards_rates_and_says_so():
    one = CachedRank(
        rank=dataclasses.replace(rank(), model=ByIdentity(MAMBA2)), cache=KV_FORMATS["bf16"], decode_context_parallel=1
    )
    _, is_measured = attention_evidence(one)
    assert not is_measured
    # Each layer reads and writes 128 x 64 x 128 elements of 4 bytes a sequence, at 0.6 of 3.35 TB/s, after 5 us.
    state = 2 * 4 * 128 * 64 * 128 / 3.35e12 / 0.6
    assert token_seconds(one, 1000) == pytest.approx(2 * (5e-6 + SIZES * state))
