"""How far a config's rope scaling stretches the context."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.families.reading.rope_scaling import stretched_positions
from tests.planners.serving.factories import LLAMA_8B

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("scaling", "positions"),
    [
        # Four times the 32,768 that it was trained on; without them four times the stated.
        (YARN, 131072),
        ({"type": "yarn", "factor": 4.0}, 4 * 40960),
        ({"rope_type": "linear", "factor": 2}, 81920),
        ({"rope_type": "dynamic", "factor": 6.0}, 245760),
        # The stated positions are the stretched ones already.
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 40960),
        ({"rope_type": "longrope", "factor": 32.0}, 40960),
        ({"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 4096}, 40960),
        ({"rope_type": "yarn", "factor": 0.5}, 40960),
        ({"rope_type": "yarn", "factor": "4"}, 40960),
        ({"rope_type": "yarn", "factor": float("nan")}, 40960),
        ({"rope_type": "default"}, 40960),
        ({"rope_type": [], "factor": 4.0}, 40960),
        ("yarn", 40960),
        (None, 40960),
    ],
)
def test_positions_are_stretched_by_what_the_config_states(scaling: Any, positions: int):
    assert stretched_positions({"rope_scaling": scaling}, 40960) == positions


def test_the_newer_key_and_the_text_part_are_read_too():
    assert stretched_positions({"rope_parameters": YARN}, 40960) == 131072
    assert stretched_positions({"text_config": {"rope_scaling": YARN}}, 40960) == 131072


def test_gemma_3_states_its_stretched_positions():
    found = catalogue().model("google/gemma-3-27b-it")
    # Its text_config states 131,072 and a linear scaling by 8.
    assert describe_config(found.config, name="m").max_position_embeddings == 131072


def test_a_model_without_positions_stays_without():
    assert stretched_positions({"rope_scaling": YARN}, None) is None


def test_the_description_carries_the_stretched_positions():
    config = {**LLAMA_8B, "max_position_embeddings": 32768, "rope_scaling": YARN}
    assert describe_config(config, name="m").max_position_embeddings == 131072


def test_deepseeks_positions_are_those_its_scaling_reaches():
    # 40 times 4,096.
    found = catalogue().model("deepseek-ai/DeepSeek-V3")
    assert describe_config(found.config, name="m").max_position_embeddings == 163840
