from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.random_plans.comparing import BELOW_FRACTION, Row, compared
from benchmarks.random_plans.draw import DrawnPlan, drawn_plans
from benchmarks.random_plans.planning import allocated_bytes, planned_memory, read_request
from benchmarks.random_plans.report import summary
from plimsoll.service.worker.recording.ledger import ITEMS


@pytest.fixture(scope="module")
def plan() -> DrawnPlan:
    return next(drawn_plans(5, 1, Counter()))


def a_line(plan: DrawnPlan, traced_bytes: int) -> dict[str, Any]:
    stage = {
        "stage": plan.stages[0],
        "peak_bytes": traced_bytes,
        "peak_phase": "backward",
        "items": dict.fromkeys(ITEMS, 0),
    }
    return {"number": plan.number, "stages": [stage]}


def planned_bytes(plan: DrawnPlan) -> int:
    return allocated_bytes(planned_memory(read_request(plan.request), plan.layout).stages[plan.stages[0]])


def the_row(plan: DrawnPlan, traced_bytes: int) -> Row:
    (row,) = compared([plan], [a_line(plan, traced_bytes)])
    return row


def test_a_plan_equal_to_its_trace_has_no_distance(plan: DrawnPlan):
    row = the_row(plan, planned_bytes(plan))
    assert row.distance == 0
    assert not row.is_below
    assert not row.is_far_above


def test_a_line_whose_trace_is_larger_is_below(plan: DrawnPlan):
    row = the_row(plan, round(planned_bytes(plan) * 1.1))
    assert row.distance == pytest.approx(-1 / 11, abs=1e-6)
    assert row.is_below


@pytest.mark.parametrize(("part", "is_below"), [(0.9, False), (1.1, True)])
def test_below_begins_at_three_in_a_thousand(plan: DrawnPlan, part: float, is_below: bool):
    assert the_row(plan, round(planned_bytes(plan) / (1 - part * BELOW_FRACTION))).is_below is is_below


def test_a_line_whose_trace_is_much_smaller_is_far_above(plan: DrawnPlan):
    assert the_row(plan, round(planned_bytes(plan) / 1.1)).is_far_above


def test_a_plan_that_says_less_of_the_host_than_was_traced_is_below_there(plan: DrawnPlan):
    row = the_row(plan, planned_bytes(plan))
    assert not row.is_below_on_host
    below = replace(row, planned_host_bytes=9, traced_host_bytes=10)
    assert below.is_below_on_host
    assert "of 1 stages that use the host's memory 1 are" in "".join(summary([below]))


def test_a_plan_whose_trace_failed_has_no_row(plan: DrawnPlan):
    assert not list(compared([plan], [{"number": plan.number, "failed": "RuntimeError"}]))


def test_a_row_is_counted_under_its_stack_and_method(plan: DrawnPlan):
    row = the_row(plan, planned_bytes(plan))
    assert f"stack {plan.layout.framework}" in row.classes
    assert f"method {plan.request['training']['method']}" in row.classes


def test_the_report_counts_what_is_below_and_names_it(plan: DrawnPlan):
    planned = planned_bytes(plan)
    rows = [the_row(plan, planned), the_row(plan, planned * 2)]
    text = list(summary(rows))
    # Of two stages one is half of its trace: 25 % off on average.
    assert text[1].split() == ["all", "stacks", "that", "run", "2", "25.00%", "-50.00%", "+0.00%", "1", "0"]
    assert any(rows[1].name in line for line in text)


def test_the_report_names_nothing_where_nothing_is_to_be_shown(plan: DrawnPlan):
    row = the_row(plan, planned_bytes(plan) * 2)
    assert not any(row.name in line for line in summary([row], 0))


def test_the_textbook_stands_apart_in_the_report(plan: DrawnPlan):
    row = the_row(plan, planned_bytes(plan))
    text = list(summary([row, replace(row, is_textbook=True, planned_bytes=1)]))
    assert text[1].split()[4:] == ["1", "0.00%", "+0.00%", "+0.00%", "0", "0"]
    assert text[2].startswith("the textbook")
