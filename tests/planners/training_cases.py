"""Shortcuts for tests of single layouts: one layout's memory and step, without the search."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from plimsoll.planners.jobs.job import Job, training_job
from plimsoll.planners.layouts.candidates import Candidates, candidates_from_rows
from plimsoll.planners.memory.items import Items
from plimsoll.planners.memory.peak import memory_of
from plimsoll.planners.plans import Memory, Step
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.planners.timing.efficiency import load_efficiency
from plimsoll.planners.timing.step import step_of
from tests.planners.factories import question


def job(framework: str = "reference", **changes: Any) -> Job:
    """Return a job through one profile."""
    return training_job(question(framework=framework, **changes), load_profile(framework))


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


def at_event(found: Iterable[Items], event: str) -> Items:
    """Return what is held at the one event of that name."""
    (items,) = (items for items in found if items.event == event)
    return items


def of_layer(items: Items, layer: int, kind: str, *, stage: int = 0) -> float:
    """Return one kind of bytes of a single layout where that layer of a stage is differentiated, 0 the lowest."""
    if items.layer is None:
        raise ValueError(f"{items.event}: no layer is differentiated")
    held, layers = np.broadcast_arrays(getattr(items, kind), items.layer)
    (found,) = {float(value) for value in held[:, stage][layers[:, stage] == layer]}
    return found
