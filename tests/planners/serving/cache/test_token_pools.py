"""Tests of the pools of SGLang and TensorRT-LLM."""

from __future__ import annotations

import dataclasses

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.serving.cache.kv_formats import KV_FORMATS, CacheTerms
from plimsoll.planners.serving.cache.pools import UNBOUNDED
from plimsoll.planners.serving.cache.token_pools import TokenPools, token_pools
from plimsoll.planners.serving.releases.profile import engine_profile
from tests.planners.serving.factories import model


def published(name):
    return describe_config(catalogue().model(name).config, name=name)


def pools_of(spec, *, engine="sglang", version=None, tensor=1, kv="bf16", page=1, batch=64, **changes) -> TokenPools:
    profile = engine_profile(engine, version)
    terms = CacheTerms(
        model_type=spec.model_type,
        kv=KV_FORMATS[kv],
        profile=profile,
        block_size=page,
        max_model_len=8192,
        in_flight_tokens=8192,
        activation_bytes=2,
        batch_sequences=batch,
        **changes,
    )
    return token_pools(spec, terms, profile.pools, tensor_parallel=tensor)


def layers_of(spec):
    return range(spec.num_layers)


def test_one_pool_holds_the_tokens_of_a_plain_model():
    # Llama-3.1-8B: 128 KiB a token; 10 GiB hold 81,920.
    spec = model()
    cache = pools_of(spec)
    assert cache.pools(10 * GIB, layers_of(spec)) == (81920,)
    assert cache.capacity((81920,), max_model_len=8192).max_concurrency == 10
    assert cache.pool_bytes((81920,), layers_of(spec)) == 10 * GIB


def test_pages_of_tokens_are_whole():
    spec = model()
    cache = pools_of(spec, page=64)
    # 64 tokens take 8 MiB.
    assert cache.pools(10 * 2**20, layers_of(spec)) == (1,)
    assert cache.capacity((3,), max_model_len=192).tokens == 192
    assert [cache.held(tokens) for tokens in (1, 64, 65)] == [(1,), (1,), (2,)]
    assert cache.slots_held(65) == (128, 63)


def test_gpt_oss_gives_its_windows_four_fifths_of_the_tokens():
    # 12 full and 12 sliding layers of 2 x 8 x 64 x 2 = 2,048 bytes: 24,576 x (1 + 0.8) = 44,236.8 a token.
    # 10 GiB / 44,236.8 = 242,725; x 0.8 = 194,180.
    spec = published("openai/gpt-oss-20b")
    cache = pools_of(spec)
    assert cache.pools(10 * GIB, layers_of(spec)) == (242725, 194180)
    assert cache.pool_bytes((242725, 194180), layers_of(spec)) == 24576 * (242725 + 194180)


def test_a_request_takes_its_tokens_and_at_most_its_window():
    # A window of 128, freed every 128 steps, and a page at both ends.
    cache = pools_of(published("openai/gpt-oss-20b"))
    assert [cache.held(tokens) for tokens in (100, 258, 8192)] == [(100, 100), (258, 258), (8192, 258)]
    assert cache.capacity((8192, 516), max_model_len=8192).max_concurrency == 1
    assert cache.capacity((81920, 516), max_model_len=8192).max_concurrency == 2


def test_models_that_sglang_knows_no_windows_of_keep_every_token():
    # Gemma 3 1B: all 26 layers of one head of 256, 1,024 bytes a token each.
    spec = published("google/gemma-3-1b-it")
    cache = pools_of(spec)
    (bucket,) = cache.buckets
    assert (len(bucket.layers), bucket.bytes_per_token, bucket.state.window) == (26, 1024, None)
    assert cache.pools(26 * 1024 * 7, layers_of(spec)) == (7,)


def test_chunked_attention_has_the_pool_of_windows_too():
    # Llama 4 Scout: every 4th of 48 layers is full.
    cache = pools_of(published("meta-llama/Llama-4-Scout-17B-16E"))
    assert [len(bucket.layers) for bucket in (*cache.growing, *cache.windowed)] == [12, 36]


def test_older_versions_have_no_pool_of_windows():
    cache = pools_of(published("openai/gpt-oss-20b"), version="0.5.6")
    assert ([len(bucket.layers) for bucket in cache.growing], cache.windowed) == ([24], ())


def test_a_model_of_windows_alone_has_their_pool_and_no_other():
    cache = dataclasses.replace(pools_of(published("openai/gpt-oss-20b")), growing=())
    assert cache.held(10_000) == (258,)
    assert cache.pools(12 * 2048 * 5, range(24)) == (5,)
    assert cache.pool_bytes((5,), range(24)) == 12 * 2048 * 5


MAMBA = {"model_type": "mamba", "vocab_size": 50280, "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 16}
NEXT = "Qwen/Qwen3-Next-80B-A3B-Instruct"
# A layer's state: (4 - 1) x 8,192 channels in 16 bits and 32 heads x 128 x 128 in fp32; 36 layers.
NEXT_STATE = 36 * (3 * 8192 * 2 + 32 * 128 * 128 * 4)


def test_states_take_nine_tenths_of_what_the_tokens_take():
    # 40 GiB x 0.9 / 1.9 less a padding state hold 262 states of 77,266,944 bytes; 12 layers of 2,048 bytes a token
    # share the rest: (42,949,672,960 - 263 x 77,266,944) / 24,576 = 920,754.
    spec = published(NEXT)
    cache = pools_of(spec)
    assert NEXT_STATE == 77266944
    assert cache.pools(40 * GIB, layers_of(spec)) == (920754, 262)
    assert cache.pool_bytes((920754, 262), layers_of(spec)) == 920754 * 24576 + 263 * NEXT_STATE


@pytest.mark.parametrize(("version", "states"), [("0.5.10", 3), ("0.5.14", 5), (None, 5)])
def test_a_request_takes_states_for_the_prefix_cache_too(version, states):
    assert pools_of(published(NEXT), version=version).held(100) == (100, states)


def test_drafted_tokens_take_states_of_their_own():
    # K (1 + 2 / 5) + 1 + 2 states in 20,344,581,928 bytes: K = 185; then 185 + 1 + (185 // 5 + 1) x 2 = 262 of them.
    spec = published(NEXT)
    cache = pools_of(spec, draft_tokens=2)
    tokens, states = cache.pools(40 * GIB, layers_of(spec))
    assert states == 185
    assert tokens == (40 * GIB - 262 * NEXT_STATE) // 24576


def test_a_stage_has_its_own_layers_states_alone():
    # The first 24 layers: 18 states and 6 of attention.
    spec = published(NEXT)
    _tokens, states = pools_of(spec).pools(40 * GIB, range(24))
    assert states == int((40 * GIB * 0.9 / 1.9 - NEXT_STATE / 2) // (NEXT_STATE / 2))


def test_tensorrt_llm_keeps_one_state_for_each_request_of_its_batch():
    # (40 GiB - 64 states) / (24,576 x 32) = 47,323 pages: Qwen3-Next's states are in 16 bits there.
    spec = published(NEXT)
    state = 36 * (3 * 8192 * 2 + 32 * 128 * 128 * 2)
    cache = pools_of(spec, engine="tensorrt-llm", page=32)
    pages = (40 * GIB - 64 * state) // (24576 * 32)
    assert cache.pools(40 * GIB, layers_of(spec)) == (pages, 64)
    assert cache.held(33) == (2, 1)
    assert cache.pool_bytes((pages, 64), layers_of(spec)) == pages * 24576 * 32 + 64 * state


def test_states_of_a_whole_batch_that_do_not_fit_leave_no_request():
    cache = pools_of(published(NEXT), engine="tensorrt-llm", page=32, batch=100_000)
    pools = cache.pools(40 * GIB, range(48))
    assert pools == (0, 0)
    assert not cache.capacity(pools, max_model_len=8192).fits_one_request


def test_tensorrt_llm_keeps_every_token_of_a_window():
    cache = pools_of(published("openai/gpt-oss-20b"), engine="tensorrt-llm", page=32)
    assert [len(bucket.layers) for bucket in cache.growing] == [24]
    assert cache.windowed == ()


def test_a_model_of_states_alone_passes_any_number_of_tokens():
    spec = model(MAMBA)
    cache = pools_of(spec)
    tokens, states = cache.pools(10 * GIB, layers_of(spec))
    assert tokens == UNBOUNDED
    held = cache.capacity((tokens, states), max_model_len=1000)
    assert held.max_concurrency == states / 3
    assert held.tokens == int(states / 3 * 1000)


def test_an_encoders_output_takes_slots_of_all_tokens_in_sglang_and_half_the_memory_in_tensorrt_llm():
    # T5-small: 6 layers of 8 heads of 64, 2,048 bytes a token, and as much of the encoder's.
    spec = published("google-t5/t5-small")
    shared = pools_of(spec, source_tokens=500)
    assert shared.pools(24576 * 1000, range(12)) == (1000,)
    assert shared.held(100) == (600,)
    apart = pools_of(spec, engine="tensorrt-llm", page=32, source_tokens=500)
    assert apart.pools(12288 * 32 * 20, range(12)) == (10, 10)
    assert apart.held(100) == (4, 16)
    assert apart.pool_bytes((10, 10), range(12)) == 12288 * 32 * 20


def test_latents_and_their_index_are_kept_as_each_engine_packs_them():
    # DeepSeek-V3.2 in fp8: 656 + 132 bytes packed, 576 + 132 plainly.
    spec = published("deepseek-ai/DeepSeek-V3.2")
    for engine, packed_bytes in (("sglang", 788), ("tensorrt-llm", 708)):
        (bucket,) = pools_of(spec, kv="fp8", engine=engine).growing
        assert bucket.bytes_per_token == packed_bytes


def test_the_notes_say_how_the_memory_is_shared_out():
    newest = engine_profile("sglang", None)
    (note,) = pools_of(published("openai/gpt-oss-20b")).notes(newest)
    assert "0.8 x" in note
    (note,) = pools_of(published("google/gemma-3-1b-it")).notes(newest)
    assert "keep every token" in note
    (note,) = pools_of(published(NEXT)).notes(newest)
    assert "a request takes 5" in note
    (note,) = pools_of(published(NEXT), engine="tensorrt-llm").notes(engine_profile("tensorrt-llm", None))
    assert "max_num_seqs" in note
    assert pools_of(model()).notes(newest) == ()
