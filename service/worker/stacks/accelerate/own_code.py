"""Accelerate's own code in a trace: what wraps the model, and what runs between the passes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.stacks.accelerate.engine import AccelerateEngine
from plimsoll.service.worker.stacks.accelerate.jobs import is_wrapped_by_accelerate
from plimsoll.service.worker.stacks.accelerate.preference import PreferenceEngine
from plimsoll.service.worker.stacks.accelerate.runnable import runnable_accelerate
from plimsoll.service.worker.training.own_code import OwnCode


def _engine(job: TraceJob, model: Any) -> AccelerateEngine | None:
    if not is_wrapped_by_accelerate(job):
        return None
    return AccelerateEngine(job, model) if job.reference is None else PreferenceEngine(job, model)


def _running(job: TraceJob, rank: int) -> AbstractContextManager[Any]:
    return runnable_accelerate(job, rank) if is_wrapped_by_accelerate(job) else nullcontext()


OWN_CODE = OwnCode(engine=_engine, running=_running)
