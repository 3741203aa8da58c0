from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from benchmarks.random_plans.draw import DrawnPlan, drawn_plans
from benchmarks.random_plans.files import SETS
from benchmarks.random_plans.layouts import drawn_stacks
from benchmarks.random_plans.planning import chosen_layout, planned_memory, proof_request, read_request
from plimsoll.planners.ground.terms import METHODS
from plimsoll.service.worker.proofs.refusals.every import proved_job

COUNT = 12


def drawn(seed: int, count: int = COUNT, first: int = 0) -> list[DrawnPlan]:
    return list(drawn_plans(seed, count, Counter(), first))


def test_a_seed_draws_the_same_plans_again():
    assert drawn(5) == drawn(5)


def test_seeds_draw_different_plans():
    assert drawn(5, 3) != drawn(6, 3)


def test_a_plan_depends_on_its_own_number_alone():
    assert drawn(5)[7:9] == drawn(5, 2, first=7)


def test_refusals_are_counted_by_their_reason():
    dropped: Counter[str] = Counter()
    list(drawn_plans(5, COUNT, dropped))
    assert dropped
    assert all(reason.startswith(("422 ", "501 ")) for reason in dropped)


def test_a_plan_is_the_same_after_it_was_stored():
    plan = drawn(5, 1)[0]
    assert DrawnPlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("name", SETS)
def test_stored_plans_cover_every_stack_that_is_drawn_and_method(name: str):
    plans = SETS[name].plans()
    assert {plan.layout.framework for plan in plans} == set(drawn_stacks())
    assert {plan.request["training"]["method"] for plan in plans} == set(METHODS)


def test_every_plan_is_answered_with_its_layout_and_can_be_traced():
    for plan in drawn(8):
        asked = read_request(plan.request)
        memory = planned_memory(asked, plan.layout)
        assert chosen_layout(asked) == plan.layout
        job, _ = proved_job(proof_request(asked, plan.layout, memory))
        assert job.sequence_length == plan.request["training"]["sequence_length"]


def test_the_stage_that_decides_in_the_plan_is_traced():
    for plan in SETS["fitted"].plans()[:COUNT]:
        memory = planned_memory(read_request(plan.request), plan.layout)
        assert len(plan.stages) == len(set(plan.stages))
        assert all(stage < len(memory.stages) for stage in plan.stages)


def test_a_drawn_layout_is_planned_as_the_search_plans_it():
    from plimsoll.planners.training.planning import plan_without_advice

    for plan in drawn(8, 4):
        asked = read_request(plan.request)
        found = plan_without_advice(asked.question).plan
        assert found.layout == plan.layout
        assert planned_memory(asked, plan.layout).stages == found.memory.stages


def test_drawing_and_comparing_load_no_torch():
    code = (
        "import sys, benchmarks.random_plans.__main__; from collections import Counter;"
        "from benchmarks.random_plans.draw import drawn_plans; list(drawn_plans(5, 2, Counter()));"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
