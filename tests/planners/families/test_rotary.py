"""Tests of how many features turn with their position."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.families.rotary import interpolated_tables, rotary_fraction


@pytest.mark.parametrize(
    ("config", "model_type", "fraction"),
    [
        ({}, "llama", 1.0),
        ({}, "gpt_neox", 0.25),
        ({"rotary_pct": 0.5}, "gpt_neox", 0.5),
        ({"partial_rotary_factor": 0.4}, "phi", 0.4),
        ({"rope_parameters": {"partial_rotary_factor": 0.75}}, "phi3", 0.75),
        ({"text_config": {"partial_rotary_factor": 0.5}}, "minimax_m3_vl", 0.5),
        ({"partial_rotary_factor": 2}, "llama", 1.0),
        ({"partial_rotary_factor": "half", "text_config": 7}, "llama", 1.0),
    ],
)
def test_the_part_that_turns_is_the_configs_or_its_classs(config: dict[str, Any], model_type: str, fraction: float):
    assert rotary_fraction(config, model_type) == fraction


@pytest.mark.parametrize(
    ("model_type", "positions", "tables"),
    [("gemma3", 131_072, 8), ("gemma3_text", 131_071, 1), ("llama", 131_072, 0), ("gemma3", None, 1)],
)
def test_gemma_3_turns_by_two_bases_and_interpolates_the_positions_of_128k_tokens(
    model_type: str, positions: int | None, tables: int
):
    assert interpolated_tables(model_type, positions) == tables


@pytest.mark.parametrize(
    ("name", "fraction", "tables"),
    [("microsoft/phi-2", 0.4, 0), ("google/gemma-3-27b-it", 1.0, 8), ("google/gemma-3-1b-it", 1.0, 1)],
)
def test_a_description_says_so(name: str, fraction: float, tables: int):
    spec = describe_config(catalogue().model(name).config, name=name)
    assert (spec.rotary_fraction, spec.interpolated_tables) == (fraction, tables)
