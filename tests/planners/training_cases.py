"""Shortcuts for tests of single layouts: one layout's memory and step, without the search."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from plimsoll.planners.jobs.job import Job, training_job
from plimsoll.planners.layouts.candidates import Candidates, candidates_from_rows
from plimsoll.planners.memory.peak import memory_of
from plimsoll.planners.memory.programs.choice import events_of, prepared
from plimsoll.planners.memory.programs.question import Question, question_of
from plimsoll.planners.memory.steps.events import Event
from plimsoll.planners.memory.steps.step import ITEMS
from plimsoll.planners.plans import Memory, Step
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.planners.timing.efficiency import load_efficiency
from plimsoll.planners.timing.step import step_of
from tests.planners.factories import question


def job(framework: str = "reference", **changes: Any) -> Job:
    """Return a job through one profile."""
    profile = load_profile(framework, version=changes.get("framework_version"))
    return training_job(question(framework=framework, **changes), profile)


def one_layout(**degrees: int | bool) -> Candidates:
    """Return one layout; absent degrees are 1 and nothing is sharded or recomputed."""
    return candidates_from_rows([degrees])


def memory(framework: str = "reference", *, layout: dict[str, Any] | None = None, **changes: Any) -> Memory:
    """Return the memory of one layout; the global batch is one micro-batch a replica unless told otherwise."""
    degrees = layout or {}
    batch = degrees.get("data_parallel", 1) * degrees.get("micro_batch_size", 1)
    asked = question(framework=framework, **{"global_batch_size": batch, **changes})
    return memory_of(one_layout(**degrees), 0, training_job(asked, load_profile(framework)), asked.hardware)


def step(framework: str = "reference", *, layout: dict[str, Any] | None = None, **changes: Any) -> Step:
    """Return the step of one layout."""
    asked = question(framework=framework, **changes)
    through = training_job(asked, load_profile(framework))
    return step_of(one_layout(**(layout or {})), 0, through, asked.hardware, load_efficiency(framework))


def asked(
    framework: str = "reference", *, layout: dict[str, Any] | None = None, divided: str | None = None, **changes: Any
) -> Question:
    """Return what the programs of one layout's step are asked; the global batch as `memory` has it.

    `divided` is how a pipeline's blocks are, None for the framework's own way.
    """
    degrees = layout or {}
    changes |= {} if divided is None else {"layout": {"pipeline_layout": divided}}
    batch = degrees.get("data_parallel", 1) * degrees.get("micro_batch_size", 1)
    return question_of(one_layout(**degrees), job(framework, **{"global_batch_size": batch, **changes}))


def events(framework: str = "reference", *, stage: int = 0, **changes: Any) -> tuple[Event, ...]:
    """Return what one stage of one layout allocates and releases."""
    return tuple(events_of(prepared(asked(framework, **changes)), stage, 0))


def taken(found: Iterable[Event], name: str, *, layer: int | None = None, phase: str | None = None) -> Event:
    """Return the event at which all of a piece is there: the last, of that name and layer, that allocates."""
    *_, last = (
        event
        for event in found
        if (event.name, event.layer) == (name, layer) and event.change > 0 and phase in (None, event.phase)
    )
    return last


def held(event: Event, item: str) -> int:
    """Return what is held of an item after an event."""
    return event.held[ITEMS.index(item)]
