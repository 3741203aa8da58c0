"""A model of which only the size is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.planners.catalogue import typical_config
from plimsoll.planners.catalogue.typical import FEWEST_PARAMETERS, MOST_PARAMETERS
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidQuestion

sizes = st.floats(min_value=6.0, max_value=13.0).map(lambda exponent: min(10**exponent, MOST_PARAMETERS))


@given(sizes)
def test_the_described_count_is_within_two_percent_of_the_size(parameters: float) -> None:
    config, _ = typical_config(parameters)
    assert describe_config(config, name="typical").parameters == pytest.approx(parameters, rel=0.02)


@given(sizes)
def test_the_dimensions_are_those_of_a_model_that_can_be_divided(parameters: float) -> None:
    config, _ = typical_config(parameters)
    heads = config["num_attention_heads"]
    assert config["hidden_size"] == heads * config["head_dim"]
    assert heads % config["num_key_value_heads"] == 0
    assert heads < 32 or heads % 8 == 0
    assert config["num_hidden_layers"] < 16 or config["num_hidden_layers"] % 4 == 0


@pytest.mark.parametrize(
    ("parameters", "layers", "hidden_size", "intermediate_size", "heads"),
    [
        # Llama 3.1 8B and 70B: Grattafiori et al. 2024, arXiv:2407.21783, table 3.
        (8_030_261_248, 32, 4096, 14336, 32),
        (70_553_706_496, 80, 8192, 28672, 64),
    ],
)
def test_llamas_size_gives_llamas_dimensions(
    parameters: float, layers: int, hidden_size: int, intermediate_size: int, heads: int
) -> None:
    config, _ = typical_config(parameters)
    found = tuple(
        config[key] for key in ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads")
    )
    assert found == (layers, hidden_size, intermediate_size, heads)


def test_the_assumption_names_the_dimensions_and_the_difference() -> None:
    config, assumptions = typical_config(6.2e9)
    (note,) = assumptions
    assert f"hidden size {config['hidden_size']}" in note
    assert "% of what was asked" in note


def test_the_same_size_gives_the_same_answer() -> None:
    assert typical_config(6.2e9) == typical_config(6.2e9)


def test_a_large_model_has_a_head_of_its_own_and_a_small_one_has_not() -> None:
    assert typical_config(1e9)[0]["tie_word_embeddings"] is True
    assert typical_config(7e9)[0]["tie_word_embeddings"] is False


@pytest.mark.parametrize("parameters", [FEWEST_PARAMETERS, MOST_PARAMETERS])
def test_the_ends_of_the_range_belong_to_it(parameters: float) -> None:
    assert typical_config(parameters)[0]["hidden_size"] > 0


@pytest.mark.parametrize("parameters", [0, -1e9, 999_999, 1.001e13, math.inf, math.nan])
def test_sizes_beyond_the_range_are_refused(parameters: float) -> None:
    with pytest.raises(InvalidQuestion) as caught:
        typical_config(parameters)
    assert caught.value.pointer == "/model/parameters"
