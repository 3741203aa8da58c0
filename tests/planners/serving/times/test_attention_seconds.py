"""Tests of attention's seconds, listed layer by layer from the measured kernels."""

from __future__ import annotations

import dataclasses

import pytest

from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.operators.attention import prompt_attention, token_attention
from plimsoll.planners.operators.latent import latent_prompt_attention, latent_token_attention
from plimsoll.planners.operators.products import products
from plimsoll.planners.operators.recurrent import TOKEN, recurrence
from plimsoll.planners.serving.cache.kv_formats import KV_FORMATS
from plimsoll.planners.serving.times.attention_seconds import (
    CachedRank,
    attention_evidence,
    prompt_seconds,
    token_seconds,
)
from plimsoll.planners.serving.times.curve import SIZES
from tests.planners.serving.factories import H100, LLAMA_8B, hybrid, model
from tests.planners.serving.times.test_rank_operators import DEEPSEEK_V2_LITE, rank

QWEN3_NEXT = {
    "model_type": "qwen3_next", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5120,
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "max_position_embeddings": 262144,
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
    kernel, up = latent_token_attention(H100, "vllm"), products(H100, "vllm", "bfloat16")
    assert kernel is not None
    # 16 heads of 128 + 128 features out of a latent of 512.
    expected = 27 * (kernel.seconds(SIZES, 4096, 16) + up.seconds(SIZES, 16 * 256, 512))
    assert token_seconds(cached(DEEPSEEK_V2_LITE), 4096) == pytest.approx(expected)


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
