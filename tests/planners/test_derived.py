import logging
from collections.abc import Iterator

import pytest

from plimsoll.planners.derived import UNEXPECTED, Derived
from plimsoll.planners.ground.errors import ImpossibleLayout, PlanningStopped
from plimsoll.planners.plans import Omitted


def test_what_can_be_worked_out_is_told_and_nothing_is_left_out():
    derived = Derived()
    assert derived.part("plan.communication", lambda: (1, 2), otherwise=()) == (1, 2)
    assert derived.omitted == ()


def test_a_refusal_leaves_its_part_out_in_its_own_words():
    derived = Derived()

    def refuse() -> int:
        raise ImpossibleLayout("48 ranks leave a rest.", rule="any")

    assert derived.part("plan.run.elastic_gpus", refuse, otherwise=0) == 0
    assert derived.omitted == (Omitted(part="plan.run.elastic_gpus", reason="48 ranks leave a rest."),)


def test_a_bug_leaves_its_part_out_and_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture):
    derived = Derived()
    with caplog.at_level(logging.ERROR, "plimsoll.planners.derived"):
        assert derived.part("plan.sharding.weights", lambda: 1 // 0, otherwise=None) is None
    assert derived.omitted == (Omitted(part="plan.sharding.weights", reason=UNEXPECTED),)
    (record,) = caplog.records
    assert "plan.sharding.weights" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


def test_planning_that_is_stopped_stops():
    def stop() -> int:
        raise PlanningStopped

    with pytest.raises(PlanningStopped):
        Derived().part("advice", stop, otherwise=0)


def test_what_came_before_a_failure_is_kept():
    def two() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("third")

    derived = Derived()
    assert derived.several("advice", two()) == (1, 2)
    assert [each.part for each in derived.omitted] == ["advice"]
