"""DeepSeek-V4's cache, as vLLM's own words and pull requests have it.

Published: vllm-project/vllm issue 44376 (Flash on vLLM 0.22, 16,384 tokens a batch); pull
request 48993 (Pro's block before it, 1,473,408 bytes); pull request 44454 (Flash: 1.16 % more
tokens after it).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import ImpossibleLayout, InvalidQuestion, NotYetAvailable
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.serving.cache.compressed_rows import is_compressed
from plimsoll.planners.serving.cache.kv_formats import KV_FORMATS, CacheTerms
from plimsoll.planners.serving.engines.vllm.compressed_cache import (
    CompressedCache,
    compressed_cache,
    least_padding,
)
from plimsoll.planners.serving.releases.profile import EngineProfile, engine_profile
from tests.planners.serving.factories import model

FLASH, PRO = "deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro"
V22, V24, V27 = (engine_profile("vllm", version) for version in ("0.22", "0.24", "0.27"))
FLASH_LAYERS, PRO_LAYERS = range(43), range(61)


def cache_of(
    name: str = FLASH, *, profile: EngineProfile = V22, kv: str = "fp8", in_flight: int = 16384, **degrees: int
) -> CompressedCache:
    spec = describe_config(catalogue().model(name).config, name=name)
    terms = CacheTerms(
        model_type=spec.model_type,
        kv=KV_FORMATS[kv],
        profile=profile,
        block_size=256,
        max_model_len=30000,
        in_flight_tokens=in_flight,
        activation_bytes=2,
    )
    return compressed_cache(spec, terms, **degrees)


def test_a_request_of_30000_tokens_needs_as_many_gib_as_vllm_says():
    # Entries ceil(30,000 / 256) = 118; two groups of windows ceil((127 + 16,384) / 64) + 1 = 259; states
    # ceil((7 + 16,384) / 4) + 1 = 4,099 and ceil((127 + 16,384) / 8) + 1 = 2,065: 6,800 blocks.
    cache = cache_of()
    needed = cache.set_aside(30000)
    assert needed == (118 + 2 * 259 + 4099 + 2065,)
    assert cache.pool_bytes(needed, FLASH_LAYERS) / GIB == pytest.approx(6.66, abs=0.005)


def test_the_longest_request_is_the_one_that_vllm_estimates():
    # 13,528 tokens in 5.44 GiB, a figure of two decimals: 5.435 to 5.445.
    cache = cache_of()
    assert cache.pools(round(5.445 * GIB), FLASH_LAYERS) >= cache.set_aside(13528)
    assert cache.set_aside(13528) > cache.pools(round(5.435 * GIB), FLASH_LAYERS)


def test_a_block_holds_a_page_of_every_size_for_the_longest_group_until_0_22():
    # 22 layers of (64 x 584 = 37,376 -> 37,440) + (64 x 132 = 8,448 -> 8,640) + (2 x 584 = 1,168 -> 1,728).
    assert cache_of().stage_block_bytes(FLASH_LAYERS) == 22 * (37440 + 8640 + 1728)


def test_a_block_holds_as_many_pages_of_each_size_as_any_group_since_0_23():
    # 22 windows, 21 indexes, 20 layers of 128 tokens an entry: 1.16 % less than before.
    block = cache_of(profile=V24).stage_block_bytes(FLASH_LAYERS)
    assert block == 22 * 37440 + 21 * 8640 + 20 * 1728
    assert cache_of().stage_block_bytes(FLASH_LAYERS) / block == pytest.approx(1.0116, abs=0.0001)
    # Pro: 31 windows, 30 indexes, 31 layers of 128 tokens an entry.
    assert cache_of(PRO, profile=V24).stage_block_bytes(PRO_LAYERS) == 1_473_408


def test_a_block_holds_the_pages_of_its_largest_group_since_0_27():
    # The entries': 21 x (37,440 + 8,640) + 20 x 1,728; two groups of windows have 22 x 37,440 each.
    assert cache_of(profile=V27).stage_block_bytes(FLASH_LAYERS) == 21 * (37440 + 8640) + 20 * 1728


def test_a_stage_of_a_pipeline_pays_for_its_own_layers():
    # Layers 0 to 3: a window each, halved over two groups; one layer of 4 and one of 128 tokens an entry.
    assert cache_of(profile=V27).stage_block_bytes(range(4)) == 2 * 37440


@pytest.mark.parametrize(("lengths", "layers"), [((21, 43, 21, 20), 22), ((31, 61, 30, 31), 31), ((5, 3), 5)])
def test_groups_are_as_long_as_pads_least(lengths, layers):
    # 21: 0 + 20 + 0 + 1 = 21 layers of padding; 22: 1 + 1 + 1 + 2 = 5. 31: 0 + 1 + 1 + 0.
    assert least_padding(lengths) == layers


def test_a_short_request_fills_few_blocks():
    # Of 100 tokens: 1 of entries, ceil(100 / 64) = 2 of each group of windows, at most ceil(100 / 4) and / 8 of states;
    # between two steps 8 tokens of the first of these, in 2 blocks or in parts of 3.
    assert cache_of().filling(100) == (1 + 2 + 2 + 25 + 13,)
    assert cache_of().held(100) == (1 + 2 + 2 + 3 + 13,)
    assert cache_of().slots_held(100) == (256, 156)


@given(st.integers(1, 10**6))
def test_longer_requests_never_take_fewer_blocks(tokens):
    cache = cache_of()
    assert cache.set_aside(tokens) <= cache.set_aside(tokens + 1)
    assert cache.held(tokens) <= cache.filling(tokens) <= cache.set_aside(tokens)


@pytest.mark.parametrize(("profile", "kv", "degrees", "refusal"), [
    (engine_profile("vllm", "0.19"), "fp8", {}, InvalidQuestion),
    (V22, "bf16", {}, NotYetAvailable),
    (V22, "fp8", {"context_parallel": 2}, ImpossibleLayout),
])  # fmt: skip
def test_what_is_not_known_is_refused(profile, kv, degrees, refusal):
    with pytest.raises(refusal):
        cache_of(profile=profile, kv=kv, **degrees)


@pytest.mark.parametrize(("changes", "message"), [
    ({"head_dim": 256}, "row of 256"),
    ({"compress_ratios": None, "compress_rates": {}, "compress_rate_csa": 8}, "of 8"),
])  # fmt: skip
def test_other_shapes_are_not_guessed(changes, message):
    config = {**catalogue().model(FLASH).config, **changes}
    spec = describe_config({key: value for key, value in config.items() if value is not None}, name="small")
    terms = CacheTerms(
        model_type=spec.model_type,
        kv=KV_FORMATS["fp8"],
        profile=V22,
        block_size=256,
        max_model_len=30000,
        in_flight_tokens=8192,
        activation_bytes=2,
    )
    with pytest.raises(NotYetAvailable, match=message):
        compressed_cache(spec, terms)


def test_only_models_with_entries_are_compressed():
    assert is_compressed(describe_config(catalogue().model(FLASH).config, name=FLASH))
    assert not is_compressed(model())


def test_the_answer_tells_what_a_token_adds():
    # (584 + 128 + 4) / 4 = 179 and 584 / 128 = 4.6 bytes; the window's row is 584.
    found = {
        bucket.state.compressed and bucket.state.compressed.tokens_per_entry: bucket for bucket in cache_of().buckets
    }
    assert {key: bucket.bytes_per_token for key, bucket in found.items()} == {None: 584, 4: 179, 128: 5}
