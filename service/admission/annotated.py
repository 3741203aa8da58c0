"""A workload judged by an annotation: by the stored plan that it names, or by the planning request that it holds."""

from __future__ import annotations

import json
from typing import Any, Protocol

from plimsoll.planners.catalogue import Catalogue
from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.service.admission.budget import Budget
from plimsoll.service.admission.findings import Finding, NotJudged
from plimsoll.service.admission.impossible import is_doubtful, is_impossible_plan
from plimsoll.service.admission.lanes import Lane
from plimsoll.service.admission.launch_judge import LaunchJudge
from plimsoll.service.admission.planned import Planned, planned_finding, read_planned
from plimsoll.service.ground.errors import DatabaseUnavailable, PlanNotFound
from plimsoll.service.ground.recently_used import RecentlyUsed
from plimsoll.service.persistence.records import StoredPlan
from plimsoll.service.requests.configs import special_number
from plimsoll.service.workloads.objects.annotations import PLAN, PLAN_ID
from plimsoll.service.workloads.objects.pods import PodGroup

# A stored plan never changes under its id, so what was read of it once needs no database again.
MOST_REMEMBERED_PLANS = 1_024


class StoredPlans(Protocol):
    """Finds stored plans."""

    async def get(self, plan_id: str) -> StoredPlan:
        """Return a stored plan; raises PlanNotFound and DatabaseUnavailable."""
        ...


class AnnotatedPlans:
    """Judges a lane of a workload (`lanes.py`) by the plan of its annotation instead of by its command."""

    def __init__(self, plans: StoredPlans, catalogue: Catalogue, launches: LaunchJudge) -> None:
        """Take where plans are stored, the names of models, and what plans a request that is written out."""
        self._plans = plans
        self._catalogue = catalogue
        self._launches = launches
        self._planned: RecentlyUsed[str, Planned] = RecentlyUsed(MOST_REMEMBERED_PLANS)

    async def stored(self, plan_id: str, lane: Lane, group: PodGroup) -> Finding:
        """Return how a lane compares with a stored plan; raises NotJudged where the plan cannot be looked up."""
        planned = self._planned.get(plan_id)
        if planned is None:
            try:
                planned = read_planned(await self._plans.get(plan_id))
            except PlanNotFound:
                return Finding(weight="refuse", text=f"Plan {plan_id[:80]} of annotation {PLAN_ID} is not known here.")
            except DatabaseUnavailable as error:
                raise NotJudged(f"plan {plan_id[:80]} cannot be looked up ({error.detail})") from error
            self._planned.put(plan_id, planned)
        return planned_finding(planned, lane, group.replicas, self._catalogue)

    async def inline(self, text: str, lane: Lane, budget: Budget) -> Finding:
        """Return what a planning request that is written out in the annotation comes to on a lane's GPUs.

        Raises NotJudged where it is no request, and PlimsollError where it is one that is not planned here.
        """
        request = _read_request(text)
        hardware = request.get("hardware")
        gpus = hardware.get("gpus") if isinstance(hardware, dict) else None
        if isinstance(gpus, int) and gpus != lane.gpus:
            return Finding(
                weight="refuse", text=f"Annotation {PLAN} plans {gpus} GPUs, the workload asks for {lane.gpus}."
            )
        try:
            return await self._launches.planned(f"The plan of annotation {PLAN}", request, budget)
        except PlimsollError as error:
            if is_impossible_plan(error):
                return Finding(weight="refuse", text=f"The plan of annotation {PLAN} cannot run: {error.detail}")
            if is_doubtful(error):
                return Finding(weight="warn", text=f"The plan of annotation {PLAN} may not run: {error.detail}")
            raise


def _read_request(text: str) -> dict[str, Any]:
    try:
        request = json.loads(text, parse_constant=special_number)
    except (ValueError, RecursionError) as error:
        raise NotJudged(f"annotation {PLAN} is not JSON ({error})") from error
    if not isinstance(request, dict):
        raise NotJudged(f"annotation {PLAN} is not a planning request")
    return request
