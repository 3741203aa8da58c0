"""Which program a layout's step is, and its peak as the most over its events."""

import functools
import itertools
from dataclasses import replace
from operator import attrgetter

import numpy as np
import pytest

from benchmarks.random_plans.files import SETS
from benchmarks.random_plans.planning import _candidates, read_request
from benchmarks.reserved_memory.planned_events import each_by_itself
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.memory.programs.choice import (
    OUTSIDE_STEPS,
    REPLICATED,
    RESIDENT,
    SHARDED,
    events_of,
    events_of_stages,
    prepared,
    programs_of,
    stage_peaks,
)
from plimsoll.planners.memory.programs.question import question_of
from plimsoll.planners.memory.steps.at_stage import at_stage
from plimsoll.planners.memory.steps.record import RecordedStep
from plimsoll.planners.memory.timeline import moments_of
from plimsoll.planners.questions import Evaluation
from plimsoll.planners.search.able import jobs_of
from tests.planners.factories import small_llama, small_mixtral
from tests.planners.sharding.models import DEEPSEEK, spec
from tests.planners.training_cases import asked, job

# Every fifteenth of the stored plans: forty, of all stacks, models and methods.
DRAWN = range(0, 600, 15)


@pytest.mark.parametrize(
    ("framework", "zero_stage", "program"),
    [
        ("reference", 0, RESIDENT),
        ("megatron", 1, RESIDENT),
        ("ddp", 0, REPLICATED),
        ("accelerate", 0, REPLICATED),
        ("accelerate", 2, SHARDED),
        ("fsdp2", 3, SHARDED),
    ],
)
def test_a_step_is_the_program_of_how_its_stack_holds_weights(framework, zero_stage, program):
    layout = {"data_parallel": 2, "zero_stage": zero_stage}
    found = list(programs_of(asked(framework, model=small_llama(), sequence_length=32, layout=layout)))
    assert found == [(program, None)]


def test_layouts_of_one_list_go_through_different_programs():
    rows = candidates_from_rows([{"data_parallel": 2, "zero_stage": stage} for stage in (0, 3)])
    question = question_of(rows, job("accelerate", model=small_llama(), sequence_length=32, global_batch_size=2))
    found = {program: own.tolist() for program, own in programs_of(question)}
    assert found == {REPLICATED: [True, False], SHARDED: [False, True]}


def test_an_evaluation_is_a_program_beside_the_step():
    question = asked("accelerate", model=small_llama(), sequence_length=32, evaluation=Evaluation())
    assert [program for program, _ in programs_of(question)][1:] == [OUTSIDE_STEPS]


@functools.cache
def plans():
    return {plan.number: plan for plan in SETS["fitted"].plans()}


def asked_by(number):
    plan = plans()[number]
    (own,) = jobs_of(read_request(plan.request).question)
    return question_of(_candidates(plan.layout), own)


@pytest.mark.parametrize("number", DRAWN)
def test_a_stored_plan_s_peak_is_the_most_over_its_events(number):
    question = asked_by(number)
    stages = question.rows.stage.shape
    most = [events_of(prepared(question), row, 0).largest.total for row in range(stages[0])]
    assert np.broadcast_to(stage_peaks(prepared(question)), stages)[:, 0].tolist() == most


@pytest.mark.parametrize("number", DRAWN)
def test_a_stored_plan_s_events_are_those_of_every_layer_by_itself(number):
    question = asked_by(number)
    for program, quantities, _ in prepared(question):
        runs, every = RecordedStep(), RecordedStep()
        own = at_stage(quantities, 0, 0)
        program.run(runs, own)
        program.run(every, each_by_itself(own) if hasattr(own, "layers") else own)
        assert list(runs.events) == list(every.events)


@pytest.mark.parametrize("number", DRAWN)
def test_a_stored_plan_s_stages_written_down_at_once_are_those_of_each_by_itself(number):
    question = asked_by(number)
    programs, stages = prepared(question), question.rows.stage.shape[0]
    for row, events in enumerate(events_of_stages(programs, stages, 0)):
        alone, layers = events_of(programs, row, 0), range(question.job.model.num_layers)
        assert worst(events.in_parts()) == list(events.in_parts()) == worst(alone.in_parts())
        assert events.largest == alone.largest
        assert moments_of(events, layers) == moments_of(alone, layers)


def worst(parts):
    """Return the first event of each visit, the largest behind it and the last, part by part."""
    found, start = [], 0
    for written, repeat in parts:
        kept = []
        for _, visit in itertools.groupby(written, key=attrgetter("phase", "layer")):
            first, *others = visit
            largest = max(others, key=attrgetter("total"), default=first)
            kept += [each for each in (first, *others) if any(each is one for one in (first, largest, *others[-1:]))]
        if repeat is not None:
            repeat = replace(repeat, start=start, end=start + len(kept))
        start += len(kept)
        found.append((kept, repeat))
    return found


@pytest.mark.parametrize("number", DRAWN)
def test_a_stored_plan_s_quantities_are_whole_bytes_and_never_less_than_nothing(number):
    question = asked_by(number)
    for event in (
        event for row in range(question.rows.stage.shape[0]) for event in events_of(prepared(question), row, 0)
    ):
        assert min(event.held) >= 0
    assert np.all(stage_peaks(prepared(question)) == np.floor(stage_peaks(prepared(question))))


@pytest.mark.parametrize("tokens", [8, 32, 512])
@pytest.mark.parametrize(
    "model", [small_mixtral(), spec(DEEPSEEK, num_hidden_layers=4, first_k_dense_replace=2)], ids=["mixtral", "mixed"]
)
def test_a_layout_needs_as_much_in_a_list_as_alone(model, tokens):
    rows = [
        {"data_parallel": 4, "shard_group": 4, "zero_stage": 3, "expert_parallel": degree, "recompute": recompute}
        for degree in (1, 2, 4)
        for recompute in (0, 2)
    ]
    own = job("fsdp2", model=model, gpus=4, sequence_length=tokens, global_batch_size=4)
    together = np.broadcast_to(stage_peaks(prepared(question_of(candidates_from_rows(rows), own))), (1, len(rows)))
    alone = [stage_peaks(prepared(question_of(candidates_from_rows([row]), own))).item() for row in rows]
    assert together[0].tolist() == alone
