"""Tests of what a replica's cache takes for each token."""

from __future__ import annotations

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.serving.answer import KvCache
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.replica import plan_replica
from plimsoll.planners.serving.settings.settings import resolve_settings
from tests.planners.serving.factories import hybrid, question


def cache(spec, degrees: Degrees, **changes) -> KvCache:
    asked = question(spec, gpus=degrees.gpus, **changes)
    return plan_replica(asked, resolve_settings(asked), degrees).kv


def listed(name: str):
    return describe_config(catalogue().model(name).config, name=name)


def test_decode_context_parallelism_deals_a_sequences_tokens_out():
    # 61 latents of 576 values of 2 bytes; every GPU has one token in eight.
    kv = cache(listed("deepseek-ai/DeepSeek-V3"), Degrees(tensor_parallel=8, decode_context_parallel=8))
    assert (kv.bytes_per_token, kv.bytes_per_token_per_gpu) == (70_272, 8_784)


def test_a_window_wider_than_any_request_grows_with_every_token():
    # 32 layers x 32 heads x (96 + 96) values of 2 bytes, all of them within a window of 262,144 tokens.
    kv = cache(listed("microsoft/Phi-3-mini-128k-instruct"), Degrees(), max_model_len=32768)
    assert kv.bytes_per_token == kv.bytes_per_token_per_gpu == 32 * 32 * 192 * 2


def test_a_window_that_slides_takes_no_more_for_a_further_token():
    # Per layer 8 heads x (128 + 128) values of 2 bytes; of requests of 4,096 tokens a window of 4,096 slides for none.
    spec = hybrid(full=4, sliding=12, window=4096)
    assert cache(spec, Degrees(), max_model_len=8192).bytes_per_token == 4 * 4096
    assert cache(spec, Degrees(), max_model_len=4096).bytes_per_token == 16 * 4096


def test_where_no_stage_has_room_the_memory_is_that_of_the_stage_that_lacks_most():
    # Three dense layers stand in the first of four stages, so that it holds least.
    asked = question(listed("deepseek-ai/DeepSeek-V3"), gpus=8)
    replica = plan_replica(asked, resolve_settings(asked), Degrees(tensor_parallel=2, pipeline_parallel=4))
    peaks = [stage.peak_bytes for stage in replica.memory.stages]
    assert not replica.fits
    assert replica.memory.peak_bytes == max(peaks) > peaks[0]
    assert replica.held_bytes > replica.share_bytes
