from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.random_plans.draw import drawn_plans
from benchmarks.random_plans.files import FOLDER, SETS, StoredSet

MOST_STORED_BYTES = 15 * 10**6


@pytest.fixture
def empty(tmp_path: Path) -> StoredSet:
    return StoredSet(name="tried", seed=5, folder=tmp_path)


def test_plans_are_read_as_they_were_written(empty: StoredSet):
    plans = list(drawn_plans(5, 2, Counter()))
    empty.write_plans(plans)
    assert empty.plans() == plans


def test_lines_join_those_that_are_there_in_the_order_of_their_plans(empty: StoredSet):
    empty.write_lines([{"number": 3}, {"number": 101}])
    empty.write_lines([{"number": 1}])
    assert [line["number"] for line in empty.lines()] == [1, 3, 101]


def test_a_line_written_again_takes_the_place_of_the_one_before(empty: StoredSet):
    empty.write_lines([{"number": 1, "failed": "timeout"}])
    empty.write_lines([{"number": 1, "stages": []}])
    assert list(empty.lines()) == [{"number": 1, "stages": []}]


def test_the_same_lines_are_the_same_bytes(empty: StoredSet):
    empty.write_lines([{"number": 1}])
    (file,) = empty.plans_file.parent.glob("traces-*")
    before = file.read_bytes()
    empty.write_lines([{"number": 1}])
    assert file.read_bytes() == before


def test_an_empty_set_has_no_lines(empty: StoredSet):
    assert list(empty.lines()) == []


@pytest.mark.parametrize("name", SETS)
def test_every_stored_line_is_of_a_stored_plan(name: str):
    stages = {plan.number: set(plan.stages) for plan in SETS[name].plans()}
    for line in SETS[name].lines():
        assert {stage["stage"] for stage in line.get("stages", ())} <= stages[line["number"]]


def test_the_stored_sets_stay_small():
    assert sum(file.stat().st_size for file in FOLDER.rglob("*.gz")) < MOST_STORED_BYTES
