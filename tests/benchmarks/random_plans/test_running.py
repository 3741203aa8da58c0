from __future__ import annotations

import os
import time
from collections import Counter
from typing import Any

import pytest

from benchmarks.random_plans.draw import DrawnPlan, drawn_plans
from benchmarks.random_plans.running import traced_lines


@pytest.fixture(scope="module")
def plans() -> list[DrawnPlan]:
    return list(drawn_plans(5, 3, Counter()))


def told(plan: DrawnPlan) -> dict[str, Any]:
    return {"number": plan.number, "process": os.getpid()}


def failing(plan: DrawnPlan) -> dict[str, Any]:
    raise ValueError(f"not {plan.number}")


def hanging_at_one(plan: DrawnPlan) -> dict[str, Any]:
    if plan.number == 1:
        time.sleep(600)
    return told(plan)


def dying_at_one(plan: DrawnPlan) -> dict[str, Any]:
    if plan.number == 1:
        os._exit(9)
    return told(plan)


def test_every_plan_has_a_line_from_another_process(plans: list[DrawnPlan]):
    lines = list(traced_lines(plans, told))
    assert [line["number"] for line in lines] == [0, 1, 2]
    assert os.getpid() not in {line["process"] for line in lines}


def test_what_a_trace_raises_is_its_line(plans: list[DrawnPlan]):
    assert [line["failed"].partition(" at ")[0] for line in traced_lines(plans, failing)] == ["ValueError"] * 3


@pytest.mark.parametrize("tracer", [hanging_at_one, dying_at_one])
def test_a_trace_that_hangs_or_dies_costs_no_other(plans: list[DrawnPlan], tracer: Any):
    lines = list(traced_lines(plans, tracer, most_seconds=5))
    assert ["failed" in line for line in lines] == [False, True, False]
