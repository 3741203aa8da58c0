"""Plans, proofs and quantizations by this process and its child, without a server, a queue or a database."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.hardware import SiteEfficiency
from plimsoll.planners.quantization.planning import QuantizationEstimate
from plimsoll.service.ground.settings import Settings, reading_anywhere, root_variables
from plimsoll.service.jobs.answers import JobBody
from plimsoll.service.jobs.quantizations import QuantizationSizer
from plimsoll.service.jobs.validations import proof_request
from plimsoll.service.models.resolving import ModelResolver
from plimsoll.service.persistence.records import JobKind, JobState, Json, Progress
from plimsoll.service.plans.service import PlanningService
from plimsoll.service.plans.store import DatabaseInMemory
from plimsoll.service.requests.jobs import QuantizeRequest
from plimsoll.service.requests.serving import InferRequest
from plimsoll.service.requests.training import TrainRequest, ValidationLevel
from plimsoll.service.worker.processes.child import ChildLimits, ChildOutcome, ChildProgress, run_child
from plimsoll.service.worker.tasks import TASKS

OnProgress = Callable[[Progress], None]
# No queue numbers the jobs of one process, and nobody asks for them again.
LOCAL_JOB_ID = "in-process"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalQuantization:
    """What a quantization would leave, and what became of it."""

    estimate: QuantizationEstimate
    job: JobBody


class InProcess:
    """Answers as a service does, for one caller and as long as the process lives."""

    def __init__(self, settings: Settings) -> None:
        """Take a service's settings; paths may lie anywhere, since whoever calls could read them anyhow."""
        self._settings = reading_anywhere(settings)
        known = catalogue()
        self._database = DatabaseInMemory()
        self.models = ModelResolver(known, self._settings)
        self._planning = PlanningService(self._database, self._settings, known, self.models, _no_calibrations)
        self._sizer = QuantizationSizer(self.models, self._settings)

    async def plan(self, request: TrainRequest | InferRequest) -> dict[str, Any]:
        """Return the body of a plan as JSON values; raises PlimsollErrors."""
        if isinstance(request, TrainRequest):
            answer = await self._planning.plan_train(request)
        else:
            answer = await self._planning.plan_infer(request)
        body: dict[str, Any] = json.loads(answer.body)
        return body

    async def prove(self, plan_id: str, level: ValidationLevel, on_progress: OnProgress) -> JobBody:
        """Prove a plan that this process made; raises PlanNotFound, and NotYetAvailable where nothing can."""
        plan = await self._database.plans.get(plan_id)
        return await self._job("validate", proof_request(plan, level), on_progress, plan_id=plan_id)

    async def quantize(self, request: QuantizeRequest, on_progress: OnProgress) -> LocalQuantization:
        """Quantize; raises what `QuantizationSizer.estimated` raises."""
        model, estimate = self._sizer.estimated(request)
        job = await self._job("quantize", self._sizer.job_request(request, model), on_progress)
        return LocalQuantization(estimate=estimate, job=job)

    async def _job(
        self, kind: JobKind, request: Json, on_progress: OnProgress, *, plan_id: str | None = None
    ) -> JobBody:
        """Run a worker's task in a child process, within the limits that a worker has."""
        latest = Progress(done=0, total=0, unit="", message="")

        def take(progress: ChildProgress) -> None:
            nonlocal latest
            latest = Progress(done=progress.done, total=progress.total, unit=progress.unit, message=progress.message)
            on_progress(latest)

        limits = ChildLimits(
            memory_bytes=self._settings.job_memory_bytes,
            seconds=self._settings.job_timeout_seconds,
            limit_address_space=sys.platform != "linux",
        )
        started = time.time()
        outcome = await run_child(
            TASKS[kind], request, limits=limits, on_progress=take, variables=root_variables(self._settings)
        )
        return _job_body(kind, outcome, latest, started=datetime.fromtimestamp(started, UTC), plan_id=plan_id)


async def _no_calibrations() -> Mapping[str, SiteEfficiency]:
    """Return none: a site's own efficiencies are in its service's database."""
    return {}


def _job_body(
    kind: JobKind, outcome: ChildOutcome, progress: Progress, *, started: datetime, plan_id: str | None
) -> JobBody:
    states: Mapping[str, JobState] = {"succeeded": "succeeded", "cancelled": "cancelled"}
    error = outcome.error
    return JobBody(
        job_id=LOCAL_JOB_ID,
        kind=kind,
        state=states.get(outcome.kind, "failed"),
        plan_id=plan_id,
        queue="",
        progress=progress,
        attempts=1,
        max_attempts=1,
        cancel_requested=False,
        worker=None,
        created_at=started,
        started_at=started,
        finished_at=started + timedelta(seconds=outcome.seconds),
        result=outcome.result,
        error=None if error is None else {"code": error.code, "detail": error.detail, "log": error.log},
    )
