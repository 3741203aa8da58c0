"""What a validation measured, on record beside what its plan predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from plimsoll.service.ground.errors import PlanNotFound
from plimsoll.service.persistence.database import Database
from plimsoll.service.persistence.records import Job, NewMeasurement, StoredPlan

log = structlog.get_logger(__name__)


class ProofRecord:
    """Keeps the record that `GET /accuracy` is drawn from."""

    def __init__(self, database: Database, *, source: str) -> None:
        """Write under the name `source`, the worker's."""
        self._database = database
        self._source = source

    async def add(self, job: Job, result: Mapping[str, Any]) -> None:
        """Record what a finished validation measured, once a job; jobs of other kinds measure nothing.

        Raises DatabaseUnavailable.
        """
        if job.kind != "validate" or job.plan_id is None:
            return
        try:
            plan = await self._database.plans.get(job.plan_id)
        except PlanNotFound:
            log.warning("proof not recorded", job_id=job.job_id, reason="its plan is gone", plan_id=job.plan_id)
            return
        await self._database.measurements.add(measurement_of(job, plan, result, source=self._source))


def measurement_of(job: Job, plan: StoredPlan, result: Mapping[str, Any], *, source: str) -> NewMeasurement:
    """Return a validation's result as a measurement of the plan that it validated."""
    return NewMeasurement(
        plan_id=plan.plan_id,
        job_id=job.job_id,
        level=result["level"],
        framework=plan.framework,
        gpu=plan.gpu,
        model=plan.model,
        predicted=result["predicted"],
        measured=result["measured"],
        relative_error=result["relative_error"],
        source=source,
    )
