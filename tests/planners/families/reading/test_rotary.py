"""Tests of how many features turn with their position."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config, traits
from plimsoll.planners.families.reading.rotary import interpolated_tables, rotary_fraction
from plimsoll.planners.ground.errors import InvalidModelConfig


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
    assert rotary_fraction(config, traits(model_type).rotary_fraction) == fraction


@pytest.mark.parametrize(("positions", "tables"), [(131_072, 8), (131_071, 1), (None, 1)])
def test_gemma_3_turns_by_two_bases_and_interpolates_the_positions_of_128k_tokens(positions: int | None, tables: int):
    assert interpolated_tables(positions) == tables


@pytest.mark.parametrize(("model_type", "is_told"), [("gemma3", True), ("gemma3_text", True), ("llama", False)])
def test_only_gemma_3_interpolates(model_type: str, is_told: bool):
    assert traits(model_type).interpolates_positions is is_told


@pytest.mark.parametrize(
    ("name", "fraction", "tables"),
    [("microsoft/phi-2", 0.4, 0), ("google/gemma-3-27b-it", 1.0, 8), ("google/gemma-3-1b-it", 1.0, 1)],
)
def test_a_description_says_so(name: str, fraction: float, tables: int):
    spec = describe_config(catalogue().model(name).config, name=name)
    assert (spec.rotary_fraction, spec.interpolated_tables) == (fraction, tables)


LLAMA = {
    "model_type": "llama", "hidden_size": 4097, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 17, "vocab_size": 128,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "241 is an odd number"),
        ({"head_dim": 242}, None),
        ({"head_dim": 1}, "1 is an odd number"),
        # Of 45 features in 90 transformers turns 46.
        ({"head_dim": 90, "model_type": "glm", "num_key_value_heads": 17, "partial_rotary_factor": 0.5}, None),
    ],
)
def test_features_turn_in_pairs(changes: dict[str, Any], words: str | None):
    config = {**LLAMA, **changes}
    if words is None:
        describe_config(config, name="small")
        return
    with pytest.raises(InvalidModelConfig, match=words) as raised:
        describe_config(config, name="small")
    assert raised.value.pointer == "/model/config/head_dim"


def test_positions_that_are_learned_leave_an_odd_head():
    gpt2 = {"model_type": "gpt2", "vocab_size": 128, "n_embd": 51, "n_layer": 2, "n_head": 3, "n_positions": 64}
    assert describe_config(gpt2, name="small").num_layers == 2
