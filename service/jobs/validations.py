"""Proofs of stored plans, queued for a worker."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.service.persistence.records import Job, StoredPlan
from plimsoll.service.plans.stored_bodies import plan_body
from plimsoll.service.requests.jobs import DeviceChoice
from plimsoll.service.requests.training import ValidationLevel
from plimsoll.service.worker.devices.accelerator_kinds import accelerator_kind
from plimsoll.service.worker.jobs.rule import DEVICE
from plimsoll.service.worker.proofs.refusals.every import proved_job
from plimsoll.service.worker.proofs.refusals.served import proved_deployment

if TYPE_CHECKING:
    # A process without a database proves plans too.
    from plimsoll.service.jobs.service import JobService
    from plimsoll.service.persistence.database import Database

CPU_QUEUE, GPU_QUEUE = "cpu", "gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWish:
    """Where a proof at level `device` is to take place."""

    on: DeviceChoice = "any"
    any_gpu_kind: bool = False


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
        where: DeviceWish | None = None,
        key_id: str | None = None,
        route: str,
        idempotency_key: str | None = None,
        asked_by: str = "",
    ) -> Job:
        """Queue the proof of a plan and return its job.

        Raises PlanNotFound, NotYetAvailable for what cannot be proved yet, and what `JobService.submit` raises.
        """
        plan, wish = await self._database.plans.get(plan_id), where or DeviceWish()
        return await self._jobs.submit(
            "validate",
            proof_request(plan, level, wish),
            plan_id=plan_id,
            queue=proof_queue(plan, level, wish),
            key_id=key_id,
            idempotency_key=idempotency_key,
            route=route,
            asked_by=asked_by,
        )


def proof_queue(plan: StoredPlan, level: ValidationLevel, wish: DeviceWish) -> str:
    """Return the queue of the workers that can give a proof: all, those with a GPU, or those with the plan's kind."""
    if level != DEVICE or wish.on != "gpu":
        return CPU_QUEUE
    return GPU_QUEUE if wish.any_gpu_kind else f"{GPU_QUEUE}:{accelerator_kind(plan.gpu)}"


def proof_request(plan: StoredPlan, level: ValidationLevel, wish: DeviceWish | None = None) -> dict[str, Any]:
    """Return what a worker is told to prove a plan; raises NotYetAvailable for what cannot be proved yet."""
    request = {
        "level": level,
        "plan_id": plan.plan_id,
        "kind": plan.kind,
        "gpu": plan.gpu,
        "device": asdict(wish or DeviceWish()),
        "model": plan.request["model"],
        "request": {name: part for name, part in plan.request.items() if name != "model"},
        "plan": plan_body(plan)["plan"],
    }
    if level != "count":
        _refuse_what_no_worker_runs(plan, request)
    return request


def _refuse_what_no_worker_runs(plan: StoredPlan, request: dict[str, Any]) -> None:
    """Raise now what the worker would only find out later."""
    try:
        if plan.kind == "infer":
            proved_deployment(request)
        else:
            proved_job(request)
    except PlimsollError as error:
        # Its pointer leads into the plan's own request, not into the one that asks for the proof.
        error.pointer = ""
        raise
