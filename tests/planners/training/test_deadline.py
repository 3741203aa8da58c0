"""A deadline is kept with failures wherever any number of GPUs keeps it so."""

from __future__ import annotations

from dataclasses import replace

from plimsoll.planners.questions import Resilience, TrainingQuestion
from plimsoll.planners.training.planning import plan_training
from tests.planners.factories import question

# One GPU in ten fails each day, so that failures cost a part of the time that no rounding hides.
FRAIL = Resilience(gpu_failures_per_month=3.0)


def late_by_failures() -> TrainingQuestion:
    """Return a question whose deadline 8 GPUs keep by a hair, and only without failures."""
    # Of one stack: between stacks near equals give way to the safer one, which may be slower.
    asked = question(
        framework="megatron",
        gpus=(8, 32),
        objective="deadline",
        tokens=1e10,
        deadline_seconds=1e9,
        resilience=FRAIL,
    )
    alone = plan_training(replace(asked, hardware=question(gpus=8).hardware)).plan.run.seconds
    assert alone is not None
    return replace(asked, deadline_seconds=alone * 1.0001)


def test_more_gpus_are_taken_where_they_keep_the_deadline_with_failures():
    asked = late_by_failures()
    answer = plan_training(asked)
    assert answer.plan.layout.gpus > 8
    assert answer.plan.run.expected_seconds <= asked.deadline_seconds


def test_where_no_number_of_gpus_keeps_it_with_failures_the_fewest_that_do_without_are_taken():
    asked = late_by_failures()
    run = plan_training(replace(asked, hardware=question(gpus=8).hardware)).plan.run
    assert run.seconds <= asked.deadline_seconds < run.expected_seconds
