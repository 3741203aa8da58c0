"""Tests of pages, groups, blocks and tokens."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.planners.architecture import KvKind
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.serving.cache.block_pool import usable_blocks
from plimsoll.planners.serving.cache.kv_formats import KV_FORMATS, CacheTerms, kv_format, layer_bytes_per_token
from plimsoll.planners.serving.cache.pools import requests_held, shared
from plimsoll.planners.serving.engines.vllm.kv_cache import (
    CacheLayout,
    cache_layout,
    capacity,
    group_size,
)
from plimsoll.planners.serving.releases.profile import engine_profile
from tests.planners.serving.factories import LLAMA_7B, LLAMA_70B, hybrid, model

V19 = engine_profile("vllm", "0.19")
NEWEST = engine_profile("vllm", None)


def layout_of(
    spec=None,
    *,
    kv="bf16",
    tensor_parallel=1,
    in_flight_tokens=8192,
    profile=V19,
    length=8192,
    source_tokens=0,
    **degrees,
) -> CacheLayout:
    spec = spec or model()
    terms = CacheTerms(
        model_type=spec.model_type,
        kv=KV_FORMATS[kv],
        profile=profile,
        block_size=16,
        max_model_len=length,
        in_flight_tokens=in_flight_tokens,
        activation_bytes=2,
        source_tokens=source_tokens,
    )
    return cache_layout(spec, terms, tensor_parallel=tensor_parallel, **degrees)


def published(name):
    return describe_config(catalogue().model(name).config, name=name)


def whole_model_bytes_per_token(spec, kv="bf16") -> int:
    return sum(layer_bytes_per_token(block.kv, KV_FORMATS[kv]) * block.repeats for block in spec.layers)


def test_llama_7b_caches_64_gib_for_64_sequences_of_2048_tokens():
    # 2 x 32 layers x 32 heads x 128 x 2 bytes = 512 KiB a token; x 2,048 = 1 GiB; x 64 = 64 GiB.
    per_sequence = whole_model_bytes_per_token(model(LLAMA_7B), "fp16") * 2048
    assert per_sequence == GIB
    assert per_sequence * 64 == 64 * GIB


def test_llama_3_8b_caches_128_kib_a_token():
    assert whole_model_bytes_per_token(model()) == 128 * 1024


def test_grouped_heads_scale_the_cache_by_key_value_heads_over_heads():
    whole = whole_model_bytes_per_token(model(num_key_value_heads=32))
    assert whole_model_bytes_per_token(model(num_key_value_heads=8)) * 4 == whole


def test_a_70b_caches_10_gib_for_8_sequences_of_4096_tokens_and_80_without_grouped_heads():
    # 2 x 80 layers x 8 heads x 128 x 2 bytes = 320 KiB a token; x 32,768 = 10 GiB.
    assert whole_model_bytes_per_token(model(LLAMA_70B)) * 8 * 4096 == 10 * GIB
    assert whole_model_bytes_per_token(model(LLAMA_70B, num_key_value_heads=64)) * 8 * 4096 == 80 * GIB


def test_8_gib_hold_16384_tokens_of_32_layers_with_32_heads_of_128():
    layout = layout_of(model(LLAMA_7B), kv="fp16")
    blocks = 8 * GIB // layout.stage_block_bytes(range(32))
    held = capacity(layout, blocks, max_model_len=16384, profile=V19)
    assert (held.blocks, held.tokens, held.max_concurrency) == (1024, 16384, 1.0)
    assert held.fits_one_request


def test_one_token_more_than_the_blocks_hold_does_not_fit():
    assert not capacity(layout_of(), 1024, max_model_len=16385, profile=V19).fits_one_request


def test_newer_versions_keep_the_null_block_apart():
    assert not capacity(layout_of(), 1024, max_model_len=16384, profile=NEWEST).fits_one_request
    assert capacity(layout_of(), 1025, max_model_len=16384, profile=NEWEST).fits_one_request
    assert usable_blocks(0, NEWEST) == 0


def test_a_window_of_1024_with_1024_batched_tokens_takes_129_blocks_a_request():
    # ceil((1,023 + 1,024) / 16) + 1 = 128 + 1.
    layout = layout_of(hybrid(full=1, sliding=1, window=1024), in_flight_tokens=1024)
    assert layout.blocks_per_request(16384) == 1024 + 129


def test_3459_blocks_hold_three_requests_of_full_and_windowed_attention():
    layout = layout_of(hybrid(full=1, sliding=1, window=1024), in_flight_tokens=1024)
    assert capacity(layout, 3459, max_model_len=16384, profile=V19).max_concurrency == 3.0


def test_a_running_request_shorter_than_the_window_fills_no_spare_block():
    layout = layout_of(hybrid(full=1, sliding=1, window=1024), in_flight_tokens=1024)
    assert layout.held(160) == layout.filling(160) == (10 + 10,)
    # Between two steps a window of 1,024 and the token that comes lie in 64 blocks, or 65 where they begin inside one.
    assert layout.held(16384) == (1024 + 65,)
    assert layout.filling(16384) == (1024 + 129,)


def test_requests_share_what_the_prompt_of_one_leaves():
    # A prompt takes 64 blocks more than the 1,089 of a running request: 64 and a null block beside 4 x 1,089 are 4,421,
    # which hold three prompts of 1,153 blocks at most.
    layout = layout_of(hybrid(full=1, sliding=1, window=1024), in_flight_tokens=1024)
    room = shared(layout, (3459,), [16384])
    assert room == (layout.usable((3459,))[0] - 64,)
    assert requests_held(room, [layout.held(16384)]) == 3
    assert requests_held(shared(layout, (4421,), [16384]), [layout.held(16384)]) == 4


@pytest.mark.parametrize(
    ("full", "sliding", "size", "groups"),
    [
        (2, 4, 2, 3),  # 2 full and 4 sliding: 3 groups of 2
        (3, 7, 3, 4),  # padded to 3 full and 9 sliding
        (12, 13, 13, 2),  # nearly equal: the larger sets the size
        (10, 52, 10, 7),  # Gemma 3 27B: 52 padded to 60
        (5, 29, 5, 7),  # Gemma 3 4B
    ],
)
def test_hybrids_are_cut_into_groups_of_the_smaller_bucket(full, sliding, size, groups):
    layout = layout_of(hybrid(full=full, sliding=sliding, window=1024))
    assert (layout.group_size, layout.groups) == (size, groups)


@pytest.mark.parametrize(("lengths", "size"), [((32,), 32), ((10, 14), 14), ((10, 15), 10), ((10, 16), 10)])
def test_buckets_within_half_as_much_again_share_the_larger_size(lengths, size):
    assert group_size(lengths) == size


def test_the_tokens_of_a_hybrid_depend_on_the_versions_wording():
    # 700 blocks over 7 groups: 700 x 16, 100 x 16, or concurrency x length.
    layout = layout_of(hybrid(full=5, sliding=29, window=1024), in_flight_tokens=1024)
    tokens = [
        capacity(layout, 700, max_model_len=1600, profile=engine_profile("vllm", version)).tokens
        for version in ("0.10", "0.19", "0.20")
    ]
    # One request: 100 blocks in the full group, min(1,023 + 1,024, 1,600) / 16 + 1 = 101 in each of six.
    assert tokens == [11200, 1600, int(700 / 706 * 1600)]


def test_heads_fewer_than_the_ranks_are_replicated():
    state = model().layers[0].kv
    assert layer_bytes_per_token(state, KV_FORMATS["bf16"], tensor_parallel=8) == 2 * 1 * 128 * 2
    assert layer_bytes_per_token(state, KV_FORMATS["bf16"], tensor_parallel=16) == 2 * 1 * 128 * 2


@pytest.mark.parametrize(
    ("kv", "size"),
    [
        ("bf16", 4096),
        ("fp16", 4096),
        ("fp8", 2048),
        ("int8", 2048 + 8 * 2 * 4),  # a float32 scale each for key and value of 8 heads
        ("nvfp4", 1024 + 2048 // 16),  # half a byte, and a byte for each 16 elements
    ],
)
def test_bytes_of_a_token_in_each_format(kv, size):
    assert layer_bytes_per_token(model().layers[0].kv, KV_FORMATS[kv]) == size


@pytest.mark.parametrize(
    ("version", "name", "allowed"),
    [
        ("0.19", "int8", "bf16, fp16, fp8"),
        ("0.19", "nvfp4", "bf16, fp16, fp8"),
        ("0.24", "nvfp4", "bf16, fp16, fp8, int8"),
        ("0.33", "fp4", "bf16, fp16, fp8, int8, nvfp4"),
    ],
)
def test_a_format_the_version_lacks_is_refused_with_the_allowed_ones(version, name, allowed):
    with pytest.raises(InvalidQuestion, match=f"allowed are fp32, {allowed}") as caught:
        kv_format(name, engine_profile("vllm", version))
    assert caught.value.pointer == "/serving/kv_cache"


def test_a_model_without_any_cache_is_refused():
    spec = model()
    block = dataclasses.replace(spec.layers[0], kv=None)
    with pytest.raises(InvalidQuestion, match="keeps no cache"):
        layout_of(dataclasses.replace(spec, layers=(block,)))


def half_as_wide_windows(heads=4):
    """Return 2 full and 2 sliding layers, the sliding ones with fewer heads."""
    spec = hybrid(full=2, sliding=2, window=64)
    narrow = dataclasses.replace(spec.layers[1], kv=dataclasses.replace(spec.layers[1].kv, heads=heads))
    return dataclasses.replace(spec, layers=(spec.layers[0], narrow))


def test_narrow_layers_hold_more_tokens_in_a_block_of_the_same_bytes():
    # 8 heads x 256 x 2 bytes x 16 tokens = 64 KiB; 4 heads fill it with 32 tokens.
    full, sliding = layout_of(half_as_wide_windows()).buckets
    assert (full.page_bytes, sliding.page_bytes) == (65536, 65536)
    assert (full.block_size, sliding.block_size) == (16, 32)


def test_versions_before_0_12_refuse_pages_of_two_sizes():
    with pytest.raises(InvalidQuestion, match="32768 and 65536"):
        layout_of(half_as_wide_windows(), profile=engine_profile("vllm", "0.11"))
    assert layout_of(half_as_wide_windows(), profile=engine_profile("vllm", "0.12")).groups == 2


def test_pages_that_do_not_divide_one_another_are_refused_until_0_33_pads_them():
    with pytest.raises(InvalidQuestion, match="24576 and 65536"):
        layout_of(half_as_wide_windows(heads=3))
    full, sliding = layout_of(half_as_wide_windows(heads=3), profile=NEWEST).buckets
    assert (full.page_bytes, sliding.page_bytes) == (65536, 65536)
    assert (full.block_size, sliding.block_size) == (16, 16)


def test_full_attention_layers_of_unlike_widths_share_one_group():
    # 2 layers of 64 KiB and 2 of 32 KiB: 192 KiB a block of 16 tokens of all four.
    spec = model(num_hidden_layers=4)
    narrow = dataclasses.replace(spec.layers[0], layers=(2, 3), kv=dataclasses.replace(spec.layers[0].kv, heads=4))
    layout = layout_of(dataclasses.replace(spec, layers=(dataclasses.replace(spec.layers[0], layers=(0, 1)), narrow)))
    assert layout.groups == 1
    assert layout.stage_block_bytes(range(4)) == 192 * 1024
    assert layout.stage_block_bytes(range(1, 3)) == 96 * 1024
    assert (layout.blocks_per_request(33), layout.held(33)) == (3, (3,))


def test_a_stage_pays_for_the_most_layers_any_group_has_there():
    # Groups interleave: sliding layers 2, 4 and 3, 5 make two groups; the first stage holds 0-2.
    layout = layout_of(hybrid(full=2, sliding=4, window=64))
    assert layout.stage_block_bytes(range(3)) == 2 * layout.buckets[0].page_bytes
    assert layout.stage_block_bytes(range(3, 6)) == 2 * layout.buckets[0].page_bytes
    assert {bucket.state.kind for bucket in layout.buckets} == {KvKind.FULL_ATTENTION, KvKind.SLIDING_WINDOW}


@given(blocks=st.integers(0, 10**6), tokens=st.integers(1, 10**6))
def test_twice_the_blocks_hold_twice_the_requests(blocks, tokens):
    layout = layout_of()
    once = capacity(layout, blocks, max_model_len=tokens, profile=V19)
    twice = capacity(layout, 2 * blocks, max_model_len=tokens, profile=V19)
    assert twice.max_concurrency == 2 * once.max_concurrency
    assert twice.tokens == 2 * once.tokens


@given(tokens=st.integers(1, 10**6))
def test_twice_the_tokens_take_twice_the_cache_of_whole_blocks(tokens):
    layout = layout_of()
    assert layout.blocks_per_request(2 * 16 * tokens) == 2 * layout.blocks_per_request(16 * tokens)
    assert layout.held(tokens) <= layout.filling(tokens) <= (layout.blocks_per_request(tokens),)


def test_an_encoders_output_has_a_group_of_its_own():
    # T5-small: 6 layers of self-attention and 6 of cross attention, pages of 16 x 2 x 8 x 64 x 2 = 32 KiB. A request
    # of 512 tokens takes 32 blocks, and 1,000 of the encoder's 63 more, however long it is.
    layout = layout_of(published("google-t5/t5-small"), source_tokens=1000)
    assert (layout.groups, layout.group_size) == (2, 6)
    assert layout.stage_block_bytes(range(12)) == 6 * 32768
    assert (layout.blocks_per_request(512), layout.held(1)) == (32 + 63, (1 + 63,))
    assert layout.slots_held(17) == (32, 15)


def test_an_encoder_of_a_fixed_length_hands_over_no_more():
    # Whisper's encoder makes 1,500 states of any 30 seconds.
    spec = model()
    state = dataclasses.replace(spec.layers[0].kv, kind=KvKind.CROSS_ATTENTION, source_tokens=1500)
    spec = dataclasses.replace(spec, layers=(dataclasses.replace(spec.layers[0], cross=state),))
    layout = layout_of(spec, source_tokens=7)
    assert layout.blocks_per_request(448) == 28 + 94


def test_an_index_of_blocks_is_kept_in_16_bits_on_every_rank():
    # MiniMax-M3: 60 layers of 4 heads x 128 in 16 bits, 2,048 bytes a token; 57 have an index of 128 features.
    spec = published("MiniMaxAI/MiniMax-M3")
    layout = layout_of(spec)
    assert layout.groups == 1
    assert layout.stage_block_bytes(range(60)) == 16 * (60 * 2048 + 57 * 256)
    divided = layout_of(spec, tensor_parallel=4)
    assert divided.stage_block_bytes(range(60)) == 16 * (60 * 512 + 57 * 256)


def test_whispers_decoder_sets_its_encoders_1500_states_aside():
    # Whisper-large-v3: 448 tokens take 28 blocks and 1,500 states 94, of 32 layers of 2 x 20 x 64 elements each.
    fields = {"d_model": 1280, "encoder_layers": 32, "decoder_layers": 32, "vocab_size": 51866, "num_mel_bins": 128}
    heads = {f"{side}_attention_heads": 20 for side in ("encoder", "decoder")}
    inner = {f"{side}_ffn_dim": 5120 for side in ("encoder", "decoder")}
    spec = describe_config({"model_type": "whisper", **fields, **heads, **inner}, name="whisper-large-v3")
    assert spec.parameters == 1_543_490_560
    layout = layout_of(spec, source_tokens=7)
    assert layout.blocks_per_request(448) == 28 + 94
    assert layout.stage_block_bytes(range(64)) == 16 * 32 * 2 * 20 * 64 * 2
