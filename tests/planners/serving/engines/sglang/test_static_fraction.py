"""Tests of SGLang's own share for weights and cache."""

from __future__ import annotations

import dataclasses

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidQuestion, NotYetAvailable
from plimsoll.planners.ground.units import GIB, MIB
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.engines.sglang.static_fraction import graph_reserve_bytes, static_fraction
from plimsoll.planners.serving.settings.settings import resolve_settings
from tests.planners.serving.factories import model, question

H100_MIB = 81090.56


def fraction(spec=None, degrees=None, total_gib=79.19, version="0.5.8", **changes):
    asked = question(spec, engine="sglang", engine_version=version, **changes)
    return static_fraction(asked.model, resolve_settings(asked), degrees or Degrees(), round(total_gib * GIB))


def published(name):
    return describe_config(catalogue().model(name).config, name=name)


def test_sglang_derives_its_fraction_from_the_card():
    # H100: 512 + 8,192 x 1.5 + 256 x 2 + 128 = 13,440 MiB of 81,091.
    assert fraction() == round(1 - 13440 / H100_MIB, 3)


def test_sglang_reserves_more_for_many_ranks_and_for_attention_ranks():
    # 8 ranks: 512 + 12,288 + 512 x 2 + 8 x 128 = 14,848; attention ranks: 512 x 8 x 4.5 MiB more.
    assert fraction(degrees=Degrees(tensor_parallel=8)) == round(1 - 14848 / H100_MIB, 3)
    attention = Degrees(attention_data_parallel=8)
    assert fraction(degrees=attention) == round(1 - (14848 + 18432) / H100_MIB, 3)


def test_sglang_keeps_ten_gib_of_a_large_card():
    # 512 + 2,048 x 1.5 + 512 + 128 = 4,224 MiB would do.
    assert fraction(max_num_batched_tokens=2048) == round(1 - 10240 / H100_MIB, 3)


def test_a_card_that_sglangs_reserve_exceeds_is_refused():
    with pytest.raises(InvalidQuestion, match="would reserve 13,440 MiB") as caught:
        fraction(total_gib=8)
    assert caught.value.pointer == "/serving/gpu_memory_utilization"


def test_a_fraction_that_is_given_is_kept():
    assert fraction(gpu_memory_utilization=0.7) == 0.7


def test_graphs_of_prefilling_are_reserved_for_since_0_5_10():
    # Sizes up to 8,192: 8 + 14 + 8 + 8 + 12 + 8 = 58, 8 MiB each.
    assert fraction(version="0.5.9") == round(1 - 13440 / H100_MIB, 3)
    assert fraction(version="0.5.10") == round(1 - (13440 + 464) / H100_MIB, 3)
    # Sizes up to 4,096: 50.
    smaller = fraction(version="0.5.10", max_num_batched_tokens=4096)
    assert smaller == round(1 - max(10240, 512 + 6144 + 512 + 128 + 400) / H100_MIB, 3)


def test_latent_attention_takes_more_for_its_graphs_and_pipelines_have_none():
    latent = published("deepseek-ai/DeepSeek-V2-Lite")
    assert fraction(latent, version="0.5.10") == round(1 - (13440 + 1536) / H100_MIB, 3)
    staged = fraction(degrees=Degrees(pipeline_parallel=2), version="0.5.10")
    assert staged == round(1 - (13440 + 128) / H100_MIB, 3)


def test_a_vision_tower_takes_a_part_of_the_fraction():
    # SigLIP has 27 layers of 1,152: 35.83 M against ViT-L/14's 25.17 M, 42.4 % more: 0.95 x (1 - 0.0424).
    plain = round(1 - 13440 / H100_MIB, 3)
    assert plain * 0.95 * 0.95762 == pytest.approx(0.75872, abs=1e-5)
    # A command states four digits, rounded up so that the cache keeps its room.
    assert fraction(published("google/gemma-3-27b-it")) == 0.7588
    # A tower of 24 layers of 1,024, as ViT-L/14, is the measure itself.
    assert fraction(published("mistralai/Mistral-Small-3.1-24B-Instruct-2503")) == pytest.approx(plain * 0.95)


def test_the_reserve_for_graphs_is_two_mib_a_request():
    settings = resolve_settings(question(engine="sglang", engine_version="0.5.8"))
    assert graph_reserve_bytes(settings, Degrees()) == 256 * 2 * MIB
    assert graph_reserve_bytes(settings, Degrees(tensor_parallel=4)) == 512 * 2 * MIB
    assert graph_reserve_bytes(resolve_settings(question()), Degrees()) == 0


def test_an_engine_without_a_reserve_of_its_own_must_be_given_a_fraction():
    settings = dataclasses.replace(resolve_settings(question()), gpu_memory_utilization=None)
    with pytest.raises(NotYetAvailable, match="give gpu_memory_utilization"):
        static_fraction(model(), settings, Degrees(), GIB)
