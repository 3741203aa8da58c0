"""Ways to divide a pipeline as Megatron-LM's arguments, written and read back."""

from __future__ import annotations

import pytest

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.service.stacks.megatron.pipelines import chunk_fields, division_fields, told_layout, virtual_stages

WAYS = (
    "even",
    "account-for-embedding",
    "account-for-loss",
    "account-for-embedding-and-loss",
    "first=3,last=2",
    "last=2",
    "Et|(t*2|)*2tL",
)


@pytest.mark.parametrize("way", WAYS)
def test_a_way_is_read_back_as_it_was_written(way: str):
    assert told_layout({name: value for name, value in division_fields(way).items() if value is not None}) == way


def test_all_stages_alike_need_no_argument():
    assert division_fields("even") == division_fields(None) == {}


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("even", {"virtual_stage_layers": 3}),
        ("account-for-loss", {"virtual_stages": 2}),
        ("first=4", {"virtual_stages": 2}),
        ("Et|t|t|tL", {}),
    ],
)
def test_virtual_stages_are_told_once(way: str, expected: dict[str, int]):
    assert chunk_fields(way, 2, 3) == expected
    assert chunk_fields(way, 1, 3) == {}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"listed_stages": "Et|t|t|tL"}, 2),
        ({"virtual_stages": 3}, 3),
        # 6 layers and embedding and loss are 4 of each of two stages.
        ({"virtual_stage_layers": 2, "counts_embedding": True, "counts_loss": True}, 2),
        ({"virtual_stage_layers": 3}, 1),
        ({}, 1),
    ],
)
def test_virtual_stages_are_read_in_all_three_forms(values: dict[str, object], expected: int):
    assert virtual_stages({"layers": 6, **values}, 2) == expected
    assert virtual_stages({"layers": 6, **values}, 1) == 1


def test_a_list_with_predictions_of_more_tokens_is_told_as_it_is():
    assert told_layout({"listed_stages": "Et|tmL"}) == "Et|tmL"


def test_a_list_that_names_no_block_is_refused():
    with pytest.raises(InvalidQuestion, match="'x' is no block"):
        told_layout({"listed_stages": "Et|txL"})
