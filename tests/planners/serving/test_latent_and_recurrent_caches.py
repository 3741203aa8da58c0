"""Latent, recurrent and chunked caches, to the block as engines logged them.

Logs: llm-d-planner pull request 205 (H100, vLLM 0.19.0); vllm-project/vllm issue 40691
(Qwen3.5-27B); noonghunna/club-3090 issue 612 and mitchross/talos-argocd-proxmox pull
request 1995 (prefix caching asked for).
"""

from __future__ import annotations

import dataclasses

import pytest

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import ImpossibleLayout, InvalidQuestion, NotYetAvailable
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.serving.cache.kv_formats import KV_FORMATS, CacheTerms, layer_bytes_per_token
from plimsoll.planners.serving.engines.vllm.kv_cache import CacheLayout, cache_layout, capacity
from plimsoll.planners.serving.releases.profile import EngineProfile, engine_profile
from tests.planners.serving.factories import model

V19 = engine_profile("vllm", "0.19")
# Two blocks of state a sequence and tokens as concurrency times length, as at 0.24 with prefix caching.
NEWEST = engine_profile("vllm", None)
ALIGNED = dataclasses.replace(engine_profile("vllm", "0.24"), recurrent_blocks=2)


def published(name: str) -> ModelSpec:
    return describe_config(catalogue().model(name).config, name=name)


def layout_of(
    spec: ModelSpec,
    *,
    kv: str = "bf16",
    profile: EngineProfile = V19,
    length: int = 8192,
    in_flight: int = 8192,
    tensor: int = 1,
    context: int = 1,
    draft_tokens: int = 0,
    **more: int,
) -> CacheLayout:
    terms = CacheTerms(
        model_type=spec.model_type,
        kv=KV_FORMATS[kv],
        profile=profile,
        block_size=16,
        max_model_len=length,
        in_flight_tokens=in_flight,
        activation_bytes=2,
        draft_tokens=draft_tokens,
        **more,
    )
    return cache_layout(spec, terms, tensor_parallel=tensor, context_parallel=context)


def bytes_per_token(name: str, kv: str = "bf16", tensor: int = 1) -> int:
    return sum(
        layer_bytes_per_token(block.kv, KV_FORMATS[kv], tensor_parallel=tensor) * block.repeats
        for block in published(name).layers
    )


def test_deepseek_v3_caches_70272_bytes_a_token_on_every_rank():
    # (512 + 64) x 2 bytes x 61 layers.
    assert bytes_per_token("deepseek-ai/DeepSeek-V3") == 70272
    assert bytes_per_token("deepseek-ai/DeepSeek-V3", tensor=8) == 70272


def test_a_sparse_latent_in_fp8_is_packed_and_its_index_kept_beside():
    # 61 layers x (656 + 128 + 4); SGLang logs 43.67 GiB for 975,424 tokens: 48,072 bytes.
    assert bytes_per_token("deepseek-ai/DeepSeek-V3.2", "fp8") == 61 * (656 + 132)
    assert bytes_per_token("deepseek-ai/DeepSeek-V3.2") == 61 * (1152 + 132)


def test_a_sparse_latent_of_another_width_has_no_known_packed_form():
    state = published("deepseek-ai/DeepSeek-V3.2").layers[0].kv
    with pytest.raises(NotYetAvailable, match="latent of 320"):
        layer_bytes_per_token(dataclasses.replace(state, latent_width=320), KV_FORMATS["fp8"])


@pytest.mark.parametrize("kv", ["int8", "nvfp4"])
def test_a_latent_cache_is_refused_formats_it_cannot_have(kv):
    with pytest.raises(InvalidQuestion, match="allowed are bf16, fp16, fp8"):
        bytes_per_token("deepseek-ai/DeepSeek-V3", kv)


def test_a_compressed_layer_has_no_bytes_of_a_single_token():
    with pytest.raises(NotYetAvailable, match="compressed"):
        bytes_per_token("deepseek-ai/DeepSeek-V4-Flash")


def test_deepseek_v2_lite_comes_out_as_logged():
    held = capacity(layout_of(published("deepseek-ai/DeepSeek-V2-Lite")), 94097, max_model_len=8192, profile=V19)
    assert held.tokens == 1505552
    assert held.max_concurrency == pytest.approx(183.78, abs=0.005)


def test_llama_4_scout_frees_what_lies_behind_its_chunk():
    layout = layout_of(published("meta-llama/Llama-4-Scout-17B-16E"), tensor=4)
    held = capacity(layout, 91495, max_model_len=8192, profile=V19)
    assert (layout.groups, held.tokens) == (4, 365968)
    assert held.max_concurrency == pytest.approx(44.68, abs=0.005)


def test_a_chunk_and_the_batch_under_way_bound_what_chunked_layers_keep():
    # 1 group of 32,768 / 16 = 2,048 blocks, 3 of (8,192 + 2,048) / 16 = 640.
    layout = layout_of(published("meta-llama/Llama-4-Scout-17B-16E"), in_flight=2048)
    assert layout.blocks_per_request(32768) == 2048 + 3 * 640


def test_versions_before_0_12_keep_everything_of_chunked_layers():
    layout = layout_of(
        published("meta-llama/Llama-4-Scout-17B-16E"), in_flight=2048, profile=engine_profile("vllm", "0.11")
    )
    assert layout.blocks_per_request(32768) == 4 * 2048


def test_qwen_3_5_27b_comes_out_as_logged():
    # State 3 x 10,240 x 2 + 48 x 128 x 128 x 4 = 3,207,168 bytes; 4,096 a token: 49 x 16 = 784 tokens.
    layout = layout_of(published("Qwen/Qwen3.5-27B"), length=32768)
    held = capacity(layout, 1487, max_model_len=32768, profile=V19)
    assert (layout.block_size, layout.groups, held.tokens) == (784, 4, 290864)
    assert held.max_concurrency == pytest.approx(33.04, abs=0.005)


def test_qwen_3_6_35b_with_prefix_caching_comes_out_as_logged():
    layout = layout_of(published("Qwen/Qwen3.6-35B-A3B"), kv="fp8", profile=ALIGNED, length=131072)
    blocks = int(5.98 * GIB) // layout.stage_block_bytes(range(40))
    held = capacity(layout, blocks, max_model_len=131072, profile=ALIGNED)
    assert (layout.block_size, held.tokens, round(held.max_concurrency, 2)) == (2096, 567978, 4.33)


def test_a_27b_on_two_ranks_with_prefix_caching_comes_out_as_logged():
    layout = layout_of(published("Qwen/Qwen3.6-27B"), kv="fp8", profile=ALIGNED, length=131072, tensor=2)
    blocks = int(4.99 * GIB) // layout.stage_block_bytes(range(64))
    held = capacity(layout, blocks, max_model_len=131072, profile=ALIGNED)
    assert (layout.block_size, held.tokens, round(held.max_concurrency, 2)) == (1568, 302921, 2.31)


def test_drafted_tokens_take_a_state_each_and_widen_the_convolutions_part():
    # noonghunna/club-3090 issue 295: 3 drafted tokens on 2 ranks, blocks of 1,600; 424 / (164 + 3 x 5) = 2.37.
    layout = layout_of(
        published("Qwen/Qwen3.6-27B"), kv="fp8", profile=ALIGNED, length=262144, tensor=2, draft_tokens=3
    )
    held = capacity(layout, 424, max_model_len=262144, profile=ALIGNED)
    assert (layout.block_size, held.tokens, round(held.max_concurrency, 2)) == (1600, 620944, 2.37)


def test_qwen_3_next_keeps_its_state_in_its_own_dtype():
    # On 2 ranks 3 x 4,096 x 2 + 16 x 128 x 128 x 2 bytes; 1,024 a token: 34 x 16, as engines log.
    assert layout_of(published("Qwen/Qwen3-Next-80B-A3B-Instruct"), tensor=2).block_size == 544


def test_a_recurrent_layer_takes_one_block_a_sequence_and_two_from_0_28():
    spec = published("Qwen/Qwen3.5-27B")
    earlier, later = layout_of(spec), layout_of(spec, profile=engine_profile("vllm", "0.28"))
    assert later.blocks_per_request(8192) == earlier.blocks_per_request(8192) + 3


def test_a_state_within_a_prompt_takes_a_block_more_and_its_kernels_tokens_divide_one():
    # Qwen3-Next on 2 ranks: the state fills 544 tokens of 16, and 576 of 64.
    spec = published("Qwen/Qwen3-Next-80B-A3B-Instruct")
    without, kept = (
        layout_of(spec, tensor=2, profile=NEWEST, **more)
        for more in ({}, {"checkpoint_blocks": 1, "state_block_tokens": 64})
    )
    assert (without.block_size, kept.block_size) == (544, 576)
    assert (without.recurrent_blocks, kept.recurrent_blocks) == (2, 3)


@pytest.mark.parametrize(
    ("model_type", "capability", "kept", "tokens"),
    [
        ("nemotron_h", None, True, 1),
        ("qwen3_next", 9.0, True, 64),
        ("qwen3_next", 8.9, False, 1),
        ("qwen3_next", None, False, 1),
        ("jamba", 9.0, False, 1),
    ],
)
def test_states_within_prompts_are_kept_by_mixer_and_card(model_type, capability, kept, tokens):
    checkpoints = NEWEST.checkpoints
    assert checkpoints.are_kept(model_type, capability) is kept
    assert checkpoints.block_tokens(model_type, capability) == tokens
    assert not engine_profile("vllm", "0.32").checkpoints.are_kept(model_type, capability)


def test_a_model_of_states_alone_keeps_one_whatever_the_version():
    layout = layout_of(published("tiiuae/falcon-mamba-7b"), length=2048, profile=NEWEST)
    assert layout.blocks_per_request(2048) == 1


def test_groups_of_state_inputs_fewer_than_the_ranks_are_replicated():
    # Granite 4 small: 8,192 channels and one group of 128 each of B and C, 3 tokens; 128 heads x 64 x 128 state.
    layout = layout_of(published("ibm-granite/granite-4.0-h-small"), tensor=2)
    state = 3 * (4096 + 2 * 128) * 2 + 64 * 64 * 128 * 2
    per_token = 4 * 2 * 128 * 2
    assert layout.block_size == 16 * -(-state // (16 * per_token))


def test_a_model_of_recurrent_layers_alone_holds_one_sequence_a_block():
    layout = layout_of(published("tiiuae/falcon-mamba-7b"), length=2048)
    held = capacity(layout, 100, max_model_len=2048, profile=V19)
    assert (layout.groups, held.max_concurrency, held.tokens) == (1, 100, 100 * 2048)


def test_a_state_that_does_not_divide_is_refused():
    with pytest.raises(NotYetAvailable, match="tensor_parallel 3"):
        layout_of(published("Qwen/Qwen3-Next-80B-A3B-Instruct"), tensor=3)


def test_layers_that_borrow_a_cache_or_mix_no_tokens_have_none():
    # Nemotron Nano 9B v2: 4 of 56 layers attend, 27 are Mamba-2, 25 feed-forward.
    layout = layout_of(published("nvidia/NVIDIA-Nemotron-Nano-9B-v2"))
    assert sorted(len(bucket.layers) for bucket in layout.buckets) == [4, 27]


def test_encoders_are_refused():
    with pytest.raises(InvalidQuestion, match="encoder"):
        layout_of(published("google-bert/bert-base-uncased"))


def test_context_parallel_ranks_share_the_tokens_out():
    # 8,192 tokens over 8 ranks: 64 blocks of 16; 1,000 blocks log 8 x 16,000 tokens.
    layout = layout_of(published("deepseek-ai/DeepSeek-V3"), tensor=8, context=8)
    held = capacity(layout, 1000, max_model_len=8192, profile=V19)
    assert (layout.blocks_per_request(8192), held.tokens) == (64, 128000)
    assert held.max_concurrency == 1000 / 64


def test_context_parallelism_meets_no_window():
    with pytest.raises(ImpossibleLayout, match="full attention alone") as caught:
        layout_of(published("openai/gpt-oss-20b"), tensor=8, context=2)
    assert caught.value.pointer == "/layout/decode_context_parallel"


def test_attention_heads_of_a_plain_model_are_still_divided():
    assert layout_of(model(), tensor=4).stage_block_bytes(range(32)) == 16 * 32 * 2 * 2 * 128 * 2
