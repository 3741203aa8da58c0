"""What the stores take and give: plain frozen values, no rows, no sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar, get_args
from uuid import UUID

PlanKind = Literal["train", "infer"]
JobKind = Literal["validate", "quantize"]
JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
FinalState = Literal["succeeded", "failed", "cancelled"]
EventKind = Literal["state", "progress", "result"]
KeyScope = Literal["plan", "quantize", "validate", "admin"]
Json = Mapping[str, Any]

PLAN_KINDS: tuple[PlanKind, ...] = get_args(PlanKind)
JOB_KINDS: tuple[JobKind, ...] = get_args(JobKind)
JOB_STATES: tuple[JobState, ...] = get_args(JobState)
FINAL_STATES: tuple[FinalState, ...] = get_args(FinalState)
EVENT_KINDS: tuple[EventKind, ...] = get_args(EventKind)
KEY_SCOPES: tuple[KeyScope, ...] = get_args(KeyScope)

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[Item]):
    """Some items, newest first, and where the next page begins."""

    items: tuple[Item, ...]
    next_cursor: str | None
    """Opaque; None on the last page."""


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
class PlanSummary(PlanLine):
    """A stored plan without its answer."""

    request: Json
    created_at: datetime | None = None
    """When it was first stored; None until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlan(PlanSummary):
    """A plan as it is stored: what was asked, and the answer as it was sent."""

    model_config: Json | None
    """The `config.json` that was planned for, where there was one."""
    answer: str
    """The whole response body as JSON text; given back character for character."""
    last_asked_at: datetime | None = None
    """When it was last planned or planned again, to the day; None until it is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFilter:
    """Which stored plans are asked for: those that match everything that is not None."""

    kind: PlanKind | None = None
    model: str | None = None
    gpu: str | None = None
    fits: bool | None = None
    verdict: str | None = None
    reader: str | None = None
    """The id of a key: only what it may see."""


ANY_PLAN = PlanFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to be queued."""

    kind: JobKind
    queue: str
    priority: int = 0
    """The higher, the sooner."""
    plan_id: str | None = None
    request: Json
    estimate: Json | None = None
    max_attempts: int = 3
    key_id: str | None = None
    """The key that it was queued with; None without one."""
    traceparent: str | None = None
    """The trace that its attempts belong to, kept beside it in the queue; None where nothing is traced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a job has come."""

    done: int
    total: int
    unit: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as it stands."""

    job_id: str
    kind: JobKind
    state: JobState
    queue: str
    priority: int
    plan_id: str | None
    request: Json
    estimate: Json | None
    progress: Progress | None
    """None until the first report."""
    attempts: int
    """How often it was begun."""
    max_attempts: int
    cancel_requested: bool
    worker: str | None
    """Who runs it, or ran it last."""
    created_at: datetime
    started_at: datetime | None
    """When the latest attempt began."""
    finished_at: datetime | None
    result: Json | None
    error: Json | None
    """`{"code", "detail"}`, and whatever else explains it."""
    queue_job_id: int | None
    """The queue's own number for it."""
    key_id: str | None = None
    """The key that it was queued with; None without one."""
    is_replay: bool = False
    """Whether an idempotency key came back for it. Of the answer, and not stored."""

    @property
    def is_finished(self) -> bool:
        """Return whether nothing will change any more."""
        return self.state in FINAL_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """Something that happened to a job; `id` grows in the order of happening."""

    id: int
    job_id: str
    kind: EventKind
    data: Json
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The right to work on a job, until someone else is given it."""

    job: Job
    token: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReply:
    """What a worker must know after it reported."""

    still_owner: bool
    """False: another attempt has the job, or it is over. Stop and write nothing."""
    cancel_requested: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMeasurement:
    """A prediction beside what was measured."""

    plan_id: str | None
    job_id: str | None = None
    level: str
    """`count`, `trace` or `device` for validations, `run` for reports from real runs."""
    framework: str
    gpu: str
    model: str
    predicted: Json
    measured: Json
    relative_error: float | None
    """predicted / measured - 1."""
    source: str
    """Who measured: a worker's or a reporter's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(NewMeasurement):
    """A measurement on record."""

    id: int
    created_at: datetime
    family: str | None
    """The `model_type` of its plan's model; None without a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyGroup:
    """How far the predictions of one kind were off."""

    level: str
    framework: str
    family: str | None
    """The `model_type` of the plans' models; None for reports without a plan."""
    gpu: str
    count: int
    mean_relative_error: float
    median_absolute_relative_error: float
    p90_absolute_relative_error: float
    worst_absolute_relative_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenModel:
    """A model that someone asked about and no catalogue lists."""

    config_hash: str
    name: str
    model_type: str
    config: Json
    first_seen_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A site's own efficiencies for one GPU."""

    gpu: str
    revision: str
    efficiencies: Json
    report: Json
    """How they were fitted, and how well."""
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedKey:
    """What a lesson holds for: a model by its config's digest, in one weight format, on a GPU and engine version."""

    model_digest: str
    gpu: str
    engine: str
    engine_version: str
    weights: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedStart:
    """What measured starts taught, by the names of the planner's `Learned`."""

    key: LearnedKey
    learned: Json
    provenance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key on record; the key itself is nowhere but with whoever was given it."""

    key_id: str
    name: str
    scopes: tuple[KeyScope, ...]
    key_hash: str = field(repr=False)
    created_at: datetime | None = None
    expires_at: datetime | None = None
    """None: never."""
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysOnRecord:
    """Every key, newest first, and what time it was where they lie: by that clock they expire, and by no other."""

    keys: tuple[ApiKey, ...]
    told_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """What waits in one queue."""

    queue: str
    waiting: int
    oldest_seconds: float
    """How long the job has waited that was queued first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcomes:
    """How many jobs of a kind ended in a state, of those on record."""

    kind: JobKind
    state: FinalState
    jobs: int
