from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.jobs.pipeline_layouts import read_pipeline_layout
from plimsoll.planners.search.rules.listed_stages import PIPELINE_LAYOUT_LISTS_LAYERS
from tests.planners.factories import llama, question

MODEL = llama(num_hidden_layers=32)


def said(way: str, *, multi_token_prediction: int = 0, **degrees: Any) -> str:
    asked = question(
        model=MODEL,
        layout={"pipeline_layout": way, **degrees},
        multi_token_prediction=multi_token_prediction,
    )
    return " ".join(violation.detail for violation in PIPELINE_LAYOUT_LISTS_LAYERS.violations(asked))


@pytest.mark.parametrize(
    ("way", "degrees", "words"),
    [
        ("Et*8|(t*8|)*2t*7L", {}, "lists 31 layers in 4 stages, and"),
        ("Et*8|(t*8|)*2t*7L", {}, "has 32: layer 31, counted from 0, is in no stage. Et*8|(t*8|)*2t*8L would do."),
        ("Et*8|(t*8|)*2t*9L", {}, "stage 3 has a layer 32, counted from 0, which does not exist. Et*8|(t*8|)*2t*8L"),
        ("Et*33|t|tL", {}, "stage 0 has a layer 32, counted from 0, which does not exist. Et*10|t*11|t*11L would do."),
        ("Et*16|t*16L", {"pipeline_parallel": 4}, "lists 2 stages, which pipeline_parallel 4 cannot be. Et*8|(t*8|)*2"),
        (
            "Et*16|t*16L",
            {"pipeline_parallel": 2, "virtual_pipeline": 2},
            "which pipeline_parallel 2 x virtual_pipeline 2 cannot be. Et*8|(t*8|)*2t*8L would do.",
        ),
        ("Et*16|t*15mL", {"multi_token_prediction": 1}, "layer 31, counted from 0, is in no stage"),
        ("Et*16|t*16mL", {}, "lists 1 layer for multi-token prediction (m), and training.multi_token_prediction asks"),
        ("Et*16|t*16L", {"multi_token_prediction": 2}, "lists 0 layers for multi-token"),
        ("Et*16|t*16L", {"multi_token_prediction": 2}, "Et*16|t*16mmL would do."),
    ],
)
def test_a_list_that_cannot_be_is_told_with_one_that_can(way: str, degrees: dict[str, Any], words: str):
    assert words in said(way, **degrees)


@pytest.mark.parametrize(
    ("way", "degrees"),
    [
        ("Et*8|(t*8|)*2t*8L", {}),
        ("Et*8|(t*8|)*2t*8L", {"pipeline_parallel": 2}),
        ("Et*8|(t*8|)*2t*8L", {"pipeline_parallel": 2, "virtual_pipeline": 2}),
        ("E|(t*16|)*2L", {"pipeline_parallel": 4, "virtual_pipeline": 1}),
        ("Et*16|t*16mL", {"multi_token_prediction": 1}),
        ("even", {"pipeline_parallel": 5}),
        ("first=40", {"pipeline_parallel": 4}),
    ],
)
def test_a_list_that_is_the_model_s_says_nothing(way: str, degrees: dict[str, Any]):
    assert said(way, **degrees) == ""


def test_what_would_do_does():
    text = said("Et*8|(t*8|)*2t*7L").rpartition(" stage. ")[2].removesuffix(" would do.")
    assert read_pipeline_layout(text).division(MODEL, 4, 1) is not None


def test_of_more_stages_than_layers_none_would_do():
    assert "would do" not in said("Et*16|t*16L", pipeline_parallel=64)


def test_what_is_no_list_at_all_is_refused_as_it_is_elsewhere():
    with pytest.raises(InvalidQuestion):
        said("Et*8||t*8L")
