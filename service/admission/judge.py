"""The webhook's decision: what the object would launch, what that needs, and what the policy makes of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from planners.catalogue import Catalogue
from planners.errors import PlimsollError
from planners.plans import TrainingAnswer
from planners.serving.answer import ServingAnswer
from service.admission.annotations import PLAN, PLAN_ID
from service.admission.gpus import GpuDemand, container_gpus, gpu_demand
from service.admission.judgement import Finding, serving_finding, training_finding
from service.admission.launches import Launch, NotRead
from service.admission.policy import Policies, Policy
from service.admission.review import Answer, Review
from service.admission.serving_commands import serving_launch
from service.admission.shell import programs
from service.admission.training_commands import training_launch
from service.admission.workloads import Container, PodGroup, annotations_of, pod_groups
from service.errors import DatabaseUnavailable, PlanNotFound
from service.persistence.records import StoredPlan

# What creates pods of its own, and was judged itself.
JUDGED_OWNERS = frozenset({
    "ReplicaSet", "StatefulSet", "Job", "PyTorchJob", "TrainJob", "JobSet", "LeaderWorkerSet", "InferenceService",
})  # fmt: skip
# Nothing here takes long but a plan nobody asked before; the API server waits 10 s by default, 30 at the most.
LONGEST_SECONDS = 8.0

log = structlog.get_logger(__name__)


class Answers(Protocol):
    """Answers planning requests without storing them."""

    def answer(self, request: Mapping[str, Any]) -> TrainingAnswer | ServingAnswer:
        """Return the planner's answer to a request's body."""
        ...


class StoredPlans(Protocol):
    """Finds stored plans."""

    async def get(self, plan_id: str) -> StoredPlan:
        """Return a stored plan; raises PlanNotFound and DatabaseUnavailable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Workload:
    """A group of pods, its container with the GPUs, and how many GPUs that makes."""

    group: PodGroup
    container: Container
    demand: GpuDemand

    @property
    def gpus(self) -> int:
        return self.group.pods * self.demand.gpus_per_pod


class _NotJudged(Exception):
    """Something is missing; the text says what."""


class AdmissionService:
    """Answers reviews."""

    def __init__(self, *, answers: Answers, plans: StoredPlans, catalogue: Catalogue, policies: Policies) -> None:
        self._answers = answers
        self._plans = plans
        self._catalogue = catalogue
        self._policies = policies

    async def review(self, review: Review, *, seconds: float = LONGEST_SECONDS) -> Answer:
        """Return the answer to a review; whatever goes wrong inside is answered as the policy says."""
        policy = self._policies.of(review.namespace)
        if policy.mode == "off" or review.object is None or not _is_launched_by(review):
            return Answer(is_allowed=True)
        try:
            async with asyncio.timeout(min(seconds, LONGEST_SECONDS)):
                findings = [finding async for finding in self._findings(review, policy)]
        except PlimsollError as error:
            return _unjudged(error.detail)
        except _NotJudged as missing:
            return _unjudged(f"{missing}.")
        except Exception as error:
            # In the path of every job: the namespace's policy decides, not the accident.
            log.exception("review not judged", uid=review.uid, namespace=review.namespace, name=review.name)
            return _in_trouble(policy, error)
        return _decided(policy, findings)

    async def _findings(self, review: Review, policy: Policy) -> AsyncIterator[Finding]:
        manifest = review.object or {}
        for group in pod_groups(review.group, review.kind, manifest):
            workload = self._workload(group)
            if workload is None:
                continue
            annotations = {**annotations_of(manifest), **group.annotations}
            if PLAN_ID in annotations:
                yield await self._against_stored(annotations[PLAN_ID], workload)
            elif PLAN in annotations:
                yield await self._inline(annotations[PLAN], workload)
            else:
                async for finding in self._commands(workload, policy):
                    yield finding

    def _workload(self, group: PodGroup) -> _Workload | None:
        """Return the group's container with GPUs, None where it asks for none."""
        for container in group.containers:
            count = container_gpus(container)
            if count is None:
                raise _NotJudged(f"the GPUs of container {container.name} are no whole number")
            if count:
                return _Workload(group=group, container=container, demand=gpu_demand(group, container, self._catalogue))
        return None

    async def _against_stored(self, plan_id: str, workload: _Workload) -> Finding:
        try:
            plan = await self._plans.get(plan_id)
        except PlanNotFound:
            return Finding(weight="refuse", text=f"Plan {plan_id[:80]} of annotation {PLAN_ID} is not known here.")
        except DatabaseUnavailable as error:
            raise _NotJudged(f"plan {plan_id[:80]} cannot be looked up ({error.detail})") from error
        asked, gpu = workload.gpus, workload.demand.gpu
        if asked != plan.gpus:
            text = f"Plan {plan_id} is for {plan.gpus} GPUs, the workload asks for {asked}."
            return Finding(weight="refuse", text=text)
        if gpu is not None and gpu != plan.gpu:
            return Finding(weight="refuse", text=f"Plan {plan_id} is for {plan.gpu}, the workload selects {gpu}.")
        return Finding(weight="fits" if plan.fits else "refuse", text=f"Plan {plan_id}: {plan.summary}")

    async def _inline(self, text: str, workload: _Workload) -> Finding:
        try:
            request = json.loads(text)
        except ValueError as error:
            raise _NotJudged(f"annotation {PLAN} is not JSON ({error})") from error
        if not isinstance(request, dict):
            raise _NotJudged(f"annotation {PLAN} is no planning request")
        hardware = request.get("hardware")
        planned = hardware.get("gpus") if isinstance(hardware, dict) else None
        if isinstance(planned, int) and planned != workload.gpus:
            return Finding(
                weight="refuse",
                text=f"Annotation {PLAN} plans {planned} GPUs, the workload asks for {workload.gpus}.",
            )
        return await self._judged(f"The plan of annotation {PLAN}", request)

    async def _commands(self, workload: _Workload, policy: Policy) -> AsyncIterator[Finding]:
        launches = list(_launches(workload))
        if not launches:
            raise _NotJudged(
                f"container {workload.container.name} starts nothing this service can read. Say the job in an "
                f"annotation {PLAN}"
            )
        for launch in launches:
            if isinstance(launch, NotRead):
                raise _NotJudged(launch.reason)
            shortage = _shortage(launch, workload)
            if shortage is not None:
                yield shortage
                continue
            hardware = _hardware(launch, workload, policy)
            finding = await self._judged(launch.program, {**launch.request, "hardware": hardware})
            yield finding
            for note in launch.notes:
                yield Finding(weight="warn", text=f"{launch.program}: {note}.")

    async def _judged(self, program: str, request: Mapping[str, Any]) -> Finding:
        answer = await asyncio.to_thread(self._answers.answer, request)
        if isinstance(answer, TrainingAnswer):
            return training_finding(program, answer)
        return serving_finding(program, answer)


def _is_launched_by(review: Review) -> bool:
    """Return whether the review is of something new that nobody judged before."""
    if review.operation not in ("CREATE", "UPDATE"):
        return False
    manifest, before = review.object or {}, review.old_object
    if review.operation == "UPDATE" and before is not None:
        same_spec = manifest.get("spec") == before.get("spec")
        if same_spec and _ours(annotations_of(manifest)) == _ours(annotations_of(before)):
            return False
    metadata = manifest.get("metadata")
    owners = metadata.get("ownerReferences") if isinstance(metadata, dict) else None
    owned_by = (owner.get("kind") for owner in owners or [] if isinstance(owner, dict))
    return not any(kind in JUDGED_OWNERS for kind in owned_by)


def _ours(annotations: Mapping[str, str]) -> Mapping[str, str]:
    return {name: text for name, text in annotations.items() if name in (PLAN, PLAN_ID)}


def _launches(workload: _Workload) -> Iterator[Launch | NotRead]:
    for words in programs(workload.container):
        launch = serving_launch(words, workload.container.image) or training_launch(words, workload.gpus)
        if launch is not None:
            yield launch


def _needed_gpus(launch: Launch) -> int | None:
    """Return the GPUs of a serving command's own degrees; a training command takes all there are."""
    if launch.kind != "infer":
        return None
    layout = launch.request["layout"]
    return int(layout["tensor_parallel"] * layout["pipeline_parallel"] * layout.get("data_parallel", 1))


def _shortage(launch: Launch, workload: _Workload) -> Finding | None:
    needed = _needed_gpus(launch)
    if needed is None or needed <= workload.gpus:
        return None
    return Finding(
        weight="refuse",
        text=f"{launch.program} needs {needed} GPUs by its own degrees, the pods ask for {workload.gpus}.",
    )


def _hardware(launch: Launch, workload: _Workload, policy: Policy) -> Mapping[str, Any]:
    demand = workload.demand
    if demand.mig_profile is not None:
        raise _NotJudged(f"a MIG slice ({demand.mig_profile}) has no entry in the catalogue")
    gpu = demand.gpu or policy.gpu
    if gpu is None:
        said = f" ({demand.unknown} is in no catalogue)" if demand.unknown else ""
        raise _NotJudged(f"no node selector or affinity names the GPU{said}, and the policy has no default for it")
    gpus = _needed_gpus(launch) or workload.gpus
    return {"gpu": gpu, "gpus": gpus, "gpus_per_node": min(demand.gpus_per_pod, gpus)}


def _decided(policy: Policy, findings: list[Finding]) -> Answer:
    refusals = [finding.text for finding in findings if finding.weight == "refuse"]
    warnings = [finding.text for finding in findings if finding.weight == "warn"]
    annotations = {"plimsoll": "; ".join(finding.text for finding in findings)} if findings else {}
    if refusals and policy.mode == "enforce":
        return Answer(
            is_allowed=False, message=" ".join(refusals), warnings=tuple(warnings), audit_annotations=annotations
        )
    return Answer(is_allowed=True, warnings=(*refusals, *warnings), audit_annotations=annotations)


def _unjudged(reason: str) -> Answer:
    return Answer(is_allowed=True, is_judged=False, warnings=(f"Plimsoll did not judge this: {reason}",))


def _in_trouble(policy: Policy, error: Exception) -> Answer:
    reason = "Plimsoll could not judge this in time." if isinstance(error, TimeoutError) else "Plimsoll is in trouble."
    if policy.on_error == "deny":
        return Answer(
            is_allowed=False,
            is_judged=False,
            message=f"{reason} The policy of this namespace refuses what is not judged.",
        )
    return Answer(
        is_allowed=True, is_judged=False, warnings=(f"{reason} It was let through unjudged, as the policy says.",)
    )
