"""Which programs the layouts of a job go through, and their peaks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import BoolArray, FloatArray
from plimsoll.planners.layouts.distinct import distinct
from plimsoll.planners.memory.holdings import in_zero_stages
from plimsoll.planners.memory.programs.outside_steps import hold, instants_of
from plimsoll.planners.memory.programs.question import Question
from plimsoll.planners.memory.programs.replicated import replicated, replicated_stage
from plimsoll.planners.memory.programs.resident import resident, resident_stage
from plimsoll.planners.memory.programs.sharded import sharded
from plimsoll.planners.memory.programs.sharded_stage import sharded_stage
from plimsoll.planners.memory.programs.zero.engine import zero_engine
from plimsoll.planners.memory.programs.zero.stage import zero_engine_stage
from plimsoll.planners.memory.steps.at_stage import alike, at_stage, at_stages
from plimsoll.planners.memory.steps.events import Events
from plimsoll.planners.memory.steps.record import RecordedStep
from plimsoll.planners.memory.steps.record_stages import RecordedStages
from plimsoll.planners.memory.steps.step import Step


@dataclass(frozen=True, slots=True)
class Program:
    """A way in which a stack holds weights: its quantities, and the step that adds them up."""

    quantities: Callable[[Question], Any]
    run: Callable[[Step, Any], None]


class Prepared(NamedTuple):
    """A program with its quantities, and which layouts of a list go through it; None where all do."""

    program: Program
    quantities: Any
    own: BoolArray | None


RESIDENT = Program(resident_stage, resident)
REPLICATED = Program(replicated_stage, replicated)
SHARDED = Program(sharded_stage, sharded)
ZERO_ENGINE = Program(zero_engine_stage, zero_engine)
OUTSIDE_STEPS = Program(instants_of, hold)
# By how a stack gathers weights, unless gradients lie on the rank throughout or an engine has buckets for them.
BY_GATHERING = {
    "resident": REPLICATED,
    "autocast_copies": REPLICATED,
    "gathered_by_layer": SHARDED,
    "gathered_once": SHARDED,
}


def programs_of(asked: Question) -> Iterator[tuple[Program, BoolArray | None]]:
    """Yield each program that any of the layouts goes through, and which of them do; None means all."""
    stages = distinct(asked.layouts.zero_stage)[0].tolist()
    chosen: dict[Program, list[int]] = {}
    for stage in stages:
        chosen.setdefault(_program(asked.job, stage), []).append(stage)
    for program, own in chosen.items():
        yield program, None if len(chosen) == 1 else in_zero_stages(asked.layouts.zero_stage, own)
    if asked.job.profile.loads_whole_weights or asked.job.evaluation is not None:
        yield OUTSIDE_STEPS, None


def prepared(asked: Question) -> tuple[Prepared, ...]:
    """Return the programs of the layouts with what they add up."""
    return tuple(Prepared(program, program.quantities(asked), own) for program, own in programs_of(asked))


def stage_peaks(programs: Iterable[Prepared]) -> FloatArray:
    """Return the most bytes that a rank of each stage allocates, in whatever shape the layouts need."""
    return pool_peaks(programs, ())[0]


def pool_peaks(programs: Iterable[Prepared], apart: Sequence[frozenset[str]]) -> tuple[FloatArray, ...]:
    """Return the most that each of several pools ever holds: the main one, and those of the pieces named `apart`."""
    peaks = [np.zeros(1)] * (len(apart) + 1)
    for program, quantities, own in programs:
        step = Step(apart)
        program.run(step, quantities)
        found = step.peaks if own is None else [np.where(own, peak, 0.0) for peak in step.peaks]
        peaks = [np.maximum(most, peak) for most, peak in zip(peaks, found, strict=True)]
    return tuple(peaks)


def events_of(programs: Iterable[Prepared], row: int, index: int) -> Events:
    """Return what one stage of one layout of a list allocates and releases, in order."""
    events = Events()
    for program, quantities, own in programs:
        if own is None or own[index if own.size > 1 else 0]:
            step = RecordedStep(events)
            program.run(step, at_stage(quantities, row, index))
            step.close()
    return events


def events_of_stages(programs: Iterable[Prepared], stages: int, index: int) -> tuple[Events, ...]:
    """Return what every stage of one layout of a list allocates and releases, of each visit the first, most and last.

    Those are events that `events_of` each stage tells.
    """
    found = [Events() for _ in range(stages)]
    for program, quantities, own in programs:
        if own is None or own[index if own.size > 1 else 0]:
            for rows in alike(quantities, stages, index):
                step = RecordedStages(len(rows))
                program.run(step, at_stages(quantities, rows, index))
                for row, events in zip(rows, step.events(), strict=True):
                    found[row].append(events)
    return tuple(found)


def _program(job: Job, zero_stage: int) -> Program:
    weights = job.profile.weights
    if job.profile.zero is not None:
        return ZERO_ENGINE
    return RESIDENT if weights.gradients_always_resident else BY_GATHERING[weights.gathering[str(zero_stage)]]
