"""Tests of what a question's engine keeps of batches under way."""

from __future__ import annotations

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.engines.caches import batches_under_way, replica_cache
from plimsoll.planners.serving.releases.profile import engine_profile
from plimsoll.planners.serving.settings.settings import resolve_settings
from tests.planners.serving.factories import question

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
ALONE = Degrees(tensor_parallel=1, pipeline_parallel=1, attention_data_parallel=1, expert_parallel=1)
FOUR_STAGES = Degrees(tensor_parallel=1, pipeline_parallel=4, attention_data_parallel=1, expert_parallel=1)
GEMMA = "google/gemma-4-31B-it"


@pytest.mark.parametrize(("version", "degrees", "batches"), [
    ("0.25", ALONE, 1), ("0.26", ALONE, 2), ("0.25", FOUR_STAGES, 1), ("0.26", FOUR_STAGES, 4),
])  # fmt: skip
def test_windows_wait_for_every_batch_under_way_since_0_26(version, degrees, batches):
    assert batches_under_way(engine_profile("vllm", version), degrees) == batches


@pytest.mark.parametrize(("version", "gib"), [("0.25", 45.79), ("0.26", 70.79)])
def test_gemma_4_needs_for_its_longest_request_what_vllm_said(version, gib):
    # vllm-project/vllm issue 49878, 32,768 tokens a batch: 8,192 blocks of full attention and 5 groups of
    # ceil((1,023 + 32,768) / 16) + 1 = 2,113, or of 4,161 with two batches; 10 pages of 256 KiB a block.
    spec = describe_config(catalogue().model(GEMMA).config, name=GEMMA)
    asked = question(spec, weights="bf16", engine_version=version, max_model_len=262144, max_num_batched_tokens=32768)
    cache = replica_cache(asked, resolve_settings(asked), ALONE)
    needed = cache.pool_bytes(cache.set_aside(262144), range(60))
    assert needed / GIB == pytest.approx(gib, abs=0.005)


def test_a_compressed_cache_is_sized_for_engines_whose_layout_of_it_is_known():
    spec = describe_config(catalogue().model(FLASH).config, name=FLASH)
    asked = question(spec, engine="sglang", engine_version=None, kv_cache="fp8", weights="fp8", max_model_len=4096)
    with pytest.raises(NotYetAvailable, match="is not sized for sglang yet"):
        replica_cache(asked, resolve_settings(asked), ALONE)
