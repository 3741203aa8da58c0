"""Tests of the cache of transformers."""

from __future__ import annotations

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.serving.cache.kv_formats import KV_FORMATS, CacheTerms
from plimsoll.planners.serving.engines.transformers.sequence_cache import SequenceCache, sequence_cache
from plimsoll.planners.serving.releases.profile import engine_profile
from tests.planners.serving.factories import hybrid, model


def published(name):
    return describe_config(catalogue().model(name).config, name=name)


def cache_of(spec, *, version=None, is_static=False, length=8192, **changes) -> SequenceCache:
    terms = CacheTerms(
        model_type=spec.model_type,
        kv=KV_FORMATS["bf16"],
        profile=engine_profile("transformers", version),
        block_size=1,
        max_model_len=length,
        in_flight_tokens=0,
        activation_bytes=2,
        **changes,
    )
    return sequence_cache(spec, terms, tensor_parallel=1, is_static=is_static)


def test_a_sequence_takes_128_kib_a_token_of_llama_3():
    cache = cache_of(model())
    assert cache.held(1000) == (1000 * 128 * 1024,)
    held = cache.capacity(cache.pools(10 * GIB, range(32)), max_model_len=8192)
    assert (held.max_concurrency, held.tokens, held.fits_one_request) == (10.0, 81920, True)


def test_a_dynamic_window_keeps_one_token_less_than_it_sees():
    # 2 full and 2 sliding layers of 4,096 bytes a token.
    cache = cache_of(hybrid(full=2, sliding=2, window=64))
    assert cache.held(1000) == (4096 * (2 * 1000 + 2 * 63),)
    assert cache.held(10) == (4096 * 4 * 10,)
    assert cache.slots_held(10) == (10, 0)


def test_a_static_cache_stands_for_the_longest_sequence_at_once():
    cache = cache_of(hybrid(full=2, sliding=2, window=64), is_static=True)
    assert cache.held(10) == cache.held(1000) == (4096 * (2 * 8192 + 2 * 64),)
    assert cache.slots_held(1000) == (8192, 7192)


@pytest.mark.parametrize(
    ("version", "size"),
    [
        ("5.12", 61 * 128 * (192 + 128) * 2),  # 128 heads of 192 features in the key and 128 in the value
        ("5.15", 70272),  # (512 + 64) x 2 bytes x 61 layers
        (None, 70272),
    ],
)
def test_latents_were_cached_as_full_keys_and_values_before_5_15(version, size):
    assert cache_of(published("deepseek-ai/DeepSeek-V3"), version=version).held(1) == (size,)


def test_sparse_latents_are_cached_whole_until_5_18_and_their_index_in_16_bits():
    # An index of 128 features in 16 bits beside either.
    spec = published("deepseek-ai/DeepSeek-V3.2")
    assert cache_of(spec, version="5.15").held(1) == (61 * (128 * 320 * 2 + 256),)
    assert cache_of(spec).held(1) == (61 * (1152 + 256),)


def test_a_recurrent_state_does_not_grow_and_keeps_a_whole_kernel_of_inputs():
    # Qwen3-Next: 36 states of 4 x 8,192 inputs in 16 bits and 32 x 128 x 128 in fp32; 12 layers of 2,048 bytes a token.
    state = 36 * (4 * 8192 * 2 + 32 * 128 * 128 * 4)
    cache = cache_of(published("Qwen/Qwen3-Next-80B-A3B-Instruct"))
    assert [cache.held(tokens) for tokens in (1, 1000)] == [(state + 24576,), (state + 24576 * 1000,)]


def test_a_decoder_keeps_its_encoders_keys_and_values_once():
    # T5-small: 6 layers of 2,048 bytes a token, of its own 10 tokens and of the encoder's 500.
    assert cache_of(published("google-t5/t5-small"), source_tokens=500).held(10) == (12288 * (10 + 500),)
