"""Jobs and plans as lists and answers show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter

from planners.quantization import QuantizationEstimate
from service.persistence.records import Job, JobKind, JobState, PlanKind, PlanSummary, Progress

NOT_BEGUN = Progress(done=0, total=0, unit="", message="")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBody:
    """A job; `result` and `error` are null until it is finished."""

    job_id: str
    kind: JobKind
    state: JobState
    plan_id: str | None
    queue: str
    progress: Progress
    attempts: int
    max_attempts: int
    cancel_requested: bool
    worker: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    result: Mapping[str, Any] | None
    error: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """Some jobs, newest first; `next_cursor` asks for the next ones and is null at the end."""

    items: tuple[JobBody, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeBody:
    """What the quantization will leave, and the job that does it."""

    estimate: QuantizationEstimate
    job: JobBody


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLine:
    """A stored plan, in a line."""

    plan_id: str
    kind: PlanKind
    fits: bool
    verdict: str
    summary: str
    model: str
    gpu: str
    gpus: int
    framework: str
    planner_version: str
    catalogue_revision: str
    calibration_revision: str
    created_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPage:
    """Some plans, newest first; `next_cursor` asks for the next ones and is null at the end."""

    items: tuple[PlanLine, ...]
    next_cursor: str | None


JOB: TypeAdapter[JobBody] = TypeAdapter(JobBody)


def job_body(job: Job) -> JobBody:
    """Return a job as clients see it."""
    return JobBody(
        job_id=job.job_id,
        kind=job.kind,
        state=job.state,
        plan_id=job.plan_id,
        queue=job.queue,
        progress=job.progress or NOT_BEGUN,
        attempts=job.attempts,
        max_attempts=job.max_attempts,
        cancel_requested=job.cancel_requested,
        worker=job.worker,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        result=job.result,
        error=job.error,
    )


def plan_line(plan: PlanSummary) -> PlanLine:
    """Return a stored plan without what was asked."""
    shown = {name: value for name, value in asdict(plan).items() if name != "request"}
    return PlanLine(**shown)
