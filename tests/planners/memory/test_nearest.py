import re
from dataclasses import replace

from plimsoll.planners.memory.nearest import SIZES, measured_runs, nearest_note, plan_sizes
from plimsoll.planners.stacks.profile import load_profile, stack_names
from plimsoll.planners.training.planning import plan_training
from tests.planners.factories import question

LAYOUT = plan_training(question(framework="fsdp2")).plan.layout


def sizes(**changes: float) -> dict[str, float]:
    run = measured_runs("nanotron")[0]
    return {**run.sizes, **changes}


def test_profiles_are_measured_exactly_where_runs_are_on_record():
    assert all(bool(measured_runs(name)) is load_profile(name).measured for name in stack_names())


def test_a_run_that_was_measured_is_its_own_nearest():
    run = measured_runs("nanotron")[0]
    layout = replace(LAYOUT, framework="nanotron", recompute=run.recompute)
    note = nearest_note(layout, method=run.method, sizes=sizes())
    assert note is not None
    assert note.endswith("It is like this plan in size and method.")


def test_distance_is_told_size_by_size_and_kind_by_kind():
    layout = replace(LAYOUT, framework="nanotron", recompute="full")
    most = max(run.sizes["tokens"] for run in measured_runs("nanotron"))
    note = nearest_note(layout, method="full", sizes=sizes(tokens=64 * most))
    assert note is not None
    assert "Unlike this plan it had recompute none" in note
    assert f" tokens per micro-batch (not {64 * most:,.0f})" in note


def test_sizes_that_differ_are_both_said():
    run = max(measured_runs("nanotron"), key=lambda run: run.sizes["gpus"])
    layout = replace(LAYOUT, framework="nanotron", recompute=run.recompute)
    apart = {**run.sizes, "gpus": 1e6, "parameters": 64 * run.sizes["parameters"]}
    note = nearest_note(layout, method=run.method, sizes=apart)
    assert note is not None
    assert f"{run.sizes['gpus']:,.0f} GPUs (not 1,000,000)" in note
    assert re.search(r"[\d.]+B parameters \(not [\d,.]+B\)", note)


def test_a_stack_that_nobody_measured_has_no_nearest_run():
    assert nearest_note(replace(LAYOUT, framework="ddp"), method="full", sizes=sizes()) is None


def test_a_plan_s_sizes_have_the_names_of_the_runs():
    named = plan_sizes(LAYOUT, parameters=8_030_261_248, sequence_length=8192)
    assert set(named) == set(SIZES)
    assert named["tokens"] == LAYOUT.micro_batch_size * 8192
