"""Accelerate's engine beneath TRL's preference trainer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.stacks.accelerate.engine import AccelerateEngine
from plimsoll.service.worker.training.companions.preference import PreferenceObjective, fuse_policy_head
from plimsoll.service.worker.training.engine import Making, Standing


class PreferenceEngine(AccelerateEngine):
    """What `Accelerator.prepare` makes of a policy whose trainer is TRL's, and of the reference beside it."""

    objective: PreferenceObjective

    def __init__(self, job: TraceJob, model: Any) -> None:
        fuse_policy_head(model)
        super().__init__(job, model)
        self.objective = PreferenceObjective(job, model, self._accelerator)

    @contextlib.contextmanager
    def attach(self, making: Making) -> Iterator[None]:
        """Answer what accelerate and TRL ask of values within the block."""
        with super().attach(making), self.objective.attached():
            yield

    def standing(self) -> Iterator[Standing]:
        """Yield the buckets, and the reference's weights."""
        yield from super().standing()
        yield from self.objective.standing()
