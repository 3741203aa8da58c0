"""Jobs as clients read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from plimsoll.planners.quantization.planning import QuantizationEstimate
from plimsoll.service.persistence.records import JobKind, JobState, Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBody:
    """A job; `result` and `error` are null until it is finished.

    `estimate` is what was said of a quantization when it was queued; null of other jobs, in lists, and in the answer
    that queues it, which has it beside the job.
    """

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
    estimate: Mapping[str, Any] | None = None


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
