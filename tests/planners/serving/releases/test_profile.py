"""Tests of the engines' data files."""

from __future__ import annotations

import dataclasses

import pytest

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.serving.releases.profile import (
    engine_profile,
    minor_version,
    versions_with_changes,
)
from plimsoll.planners.serving.releases.rules import TokensWording
from plimsoll.planners.serving.releases.tables import known_engines, read_table
from tests.planners.serving.factories import H100


def test_the_newest_known_version_is_the_default():
    assert engine_profile("vllm", None).version == "0.33"


@pytest.mark.parametrize("version", ["0.19", "0.19.1", "v0.19.0", "0.19.1rc2"])
def test_a_patch_number_is_allowed(version):
    assert engine_profile("vllm", version).version == "0.19"
    assert minor_version(version) == "0.19"


@pytest.mark.parametrize(
    ("version", "utilization"), [("0.8", 0.90), ("0.19", 0.90), ("0.21", 0.90), ("0.22", 0.92), ("0.33", 0.92)]
)
def test_utilization_defaults_to_nine_tenths_until_0_21(version, utilization):
    assert engine_profile("vllm", version).gpu_memory_utilization == utilization


@pytest.mark.parametrize(("version", "inside"), [("0.20", False), ("0.21", True), ("0.33", True)])
def test_cuda_graphs_count_against_the_budget_from_0_21(version, inside):
    assert engine_profile("vllm", version).cuda_graphs_in_budget is inside


@pytest.mark.parametrize(("version", "coefficient"), [("0.16", 36.0), ("0.17", 12.0), ("0.33", 12.0)])
def test_the_sampler_took_three_times_as_much_until_0_16(version, coefficient):
    assert engine_profile("vllm", version).sampler_bytes_per_logit == coefficient


@pytest.mark.parametrize(
    ("version", "wording"),
    [
        ("0.10", TokensWording.BLOCKS_TIMES_SIZE),
        ("0.11", TokensWording.BLOCKS_PER_GROUP),
        ("0.19", TokensWording.BLOCKS_PER_GROUP),
        ("0.20", TokensWording.CONCURRENCY_TIMES_LENGTH),
    ],
)
def test_what_is_logged_as_tokens_changed_twice(version, wording):
    assert engine_profile("vllm", version).tokens_wording is wording


@pytest.mark.parametrize(
    ("memory_gib", "name", "version", "tokens", "sequences"),
    [
        (69.9, "card", "0.19", 2048, 256),
        (70, "card", "0.19", 8192, 1024),
        (79.2, "NVIDIA A100 SXM 80 GB", "0.19", 2048, 256),
        (180, "card", "0.19", 8192, 1024),
        (180, "card", "0.33", 16384, 1024),
        (159.9, "card", "0.33", 8192, 1024),
        (119, "NVIDIA GB10", "0.33", 2048, 256),
    ],
)
def test_batch_limits_follow_the_cards_memory(memory_gib, name, version, tokens, sequences):
    gpu = dataclasses.replace(H100, id="x", name=name, memory_bytes=round(memory_gib * GIB))
    tier = engine_profile("vllm", version).batch_tier(gpu)
    assert (tier.max_num_batched_tokens, tier.max_num_seqs) == (tokens, sequences)


@pytest.mark.parametrize("version", ["0.7", "0.34", "1", "", "0.19x", "x" * 500])
def test_an_unknown_version_is_refused_with_the_known_range(version):
    with pytest.raises(InvalidQuestion, match=r"known are 0\.8 to 0\.33") as caught:
        engine_profile("vllm", version)
    assert caught.value.pointer == "/serving/engine_version"


def test_an_unknown_engine_is_refused_with_the_known_ones():
    with pytest.raises(InvalidQuestion, match="vllm, sglang, tensorrt-llm, transformers") as caught:
        engine_profile("vlm", None)
    assert caught.value.pointer == "/serving/engine"


@pytest.mark.parametrize("engine", known_engines())
def test_every_engines_newest_version_has_a_source(engine):
    profile = engine_profile(engine, None)
    assert all(profile.sources)
    assert profile.version.startswith(read_table(engine)["versions"][-1])


@pytest.mark.parametrize(
    ("version", "taken"),
    [(None, "0.5.23"), ("0.5", "0.5.23"), ("0.5.4", "0.5.4"), ("v0.5.9.post2", "0.5.9"), ("0.5.99", "0.5.23")],
)
def test_sglangs_patches_count(version, taken):
    assert engine_profile("sglang", version).version == taken


def test_a_patch_older_than_those_read_is_refused():
    with pytest.raises(InvalidQuestion, match=r"known are 0\.5\.4 to 0\.5\.23") as caught:
        engine_profile("sglang", "0.5.3")
    assert caught.value.pointer == "/serving/engine_version"


def test_a_revision_changes_only_what_it_names_of_a_table():
    # 0.5.18 adds a padding state to what 0.5.14 says of windows.
    before, after = (engine_profile("sglang", version).pools for version in ("0.5.14", "0.5.18"))
    assert (before.padding_states, after.padding_states) == (0, 1)
    assert before.window_types == after.window_types


def test_windows_have_a_pool_in_sglang_since_0_5_8():
    assert not engine_profile("sglang", "0.5.6").pools.window_types
    assert "gpt_oss" in engine_profile("sglang", "0.5.8").pools.window_types


def test_every_revision_names_its_source_and_a_known_version():
    table = read_table("vllm")
    for revision in table["revision"]:
        assert revision["source"]
        assert revision["from"] in table["versions"]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "transformers"])
def test_versions_with_changes_are_known_ones_and_ascend(engine: str):
    versions = versions_with_changes(engine)
    assert [engine_profile(engine, version).engine for version in versions] == [engine] * len(versions)
    assert sorted(versions, key=lambda version: [int(part) for part in version.split(".")]) == list(versions)


@pytest.mark.parametrize(
    ("engine", "version", "expected"),
    [
        ("tensorrt-llm", "1.2", (None, None)),
        ("tensorrt-llm", "1.3", ("nvlink_one_sided", "deepep_normal")),
        ("vllm", None, (None, None)),
        ("sglang", None, (None, None)),
    ],
)
def test_what_sends_tokens_to_their_experts_where_nobody_says(engine, version, expected):
    profile = engine_profile(engine, version)
    assert (profile.domain_exchange, profile.network_exchange) == expected
