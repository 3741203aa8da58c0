"""Proofs of stored plans, queued for a worker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from planners.errors import NotYetAvailable, PlimsollError
from service.persistence.records import Job, StoredPlan
from service.requests.training import ValidationLevel
from service.worker.dry_run.job import read_job
from service.worker.dry_run.stacks import find_stack
from service.worker.dry_run.traceable import refuse_untraced_sharding

if TYPE_CHECKING:
    # A process without a database proves plans too.
    from service.jobs import JobService
    from service.persistence.database import Database

AVAILABLE_LEVELS: tuple[ValidationLevel, ...] = ("count", "trace")


class ValidationService:
    """Queues validations."""

    def __init__(self, database: Database, jobs: JobService) -> None:
        self._database = database
        self._jobs = jobs

    async def queue(
        self,
        plan_id: str,
        level: ValidationLevel,
        *,
        key_id: str | None = None,
        route: str,
        idempotency_key: str | None = None,
    ) -> Job:
        """Queue the proof of a plan and return its job.

        Raises PlanNotFound, NotYetAvailable for what cannot be proved yet, and what `JobService.submit` raises.
        """
        refuse_level(level, pointer="/level")
        request = proof_request(await self._database.plans.get(plan_id), level)
        return await self._jobs.submit(
            "validate", request, plan_id=plan_id, key_id=key_id, idempotency_key=idempotency_key, route=route
        )


def refuse_level(level: str, *, pointer: str) -> None:
    """Raise NotYetAvailable for a level that no worker can do yet."""
    if level not in (*AVAILABLE_LEVELS, "none"):
        raise NotYetAvailable(
            f"Validation at level {level!r} is not there yet; {', '.join(AVAILABLE_LEVELS)} is.", pointer=pointer
        )


def proof_request(plan: StoredPlan, level: ValidationLevel) -> dict[str, Any]:
    """Return what a worker is told to prove a plan; raises NotYetAvailable for what cannot be proved yet."""
    refuse_level(level, pointer="/level")
    request = {
        "level": level,
        "plan_id": plan.plan_id,
        "kind": plan.kind,
        "model": plan.request["model"],
        "request": {name: part for name, part in plan.request.items() if name != "model"},
        "plan": json.loads(plan.answer)["plan"],
    }
    if level == "trace":
        _refuse_what_no_worker_traces(plan, request)
    return request


def _refuse_what_no_worker_traces(plan: StoredPlan, request: dict[str, Any]) -> None:
    """Raise now what the worker would only find out later."""
    if plan.kind == "infer":
        raise NotYetAvailable("Tracing a serving plan is not there yet; training plans can be traced.")
    try:
        job = read_job(request)
        refuse_untraced_sharding(job, find_stack(job.framework, job.kernels))
    except PlimsollError as error:
        # Its pointer leads into the plan's own request, not into the one that asks for the proof.
        error.pointer = ""
        raise
