"""The webhook's decision: what the object would launch, what that needs, and what the policy makes of it."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog

from planners.catalogue import Catalogue
from planners.errors import PlanningStopped, PlimsollError
from planners.plans import TrainingAnswer
from service.admission.annotations import PLAN, PLAN_ID
from service.admission.budget import Budget, Clock
from service.admission.config_maps import ConfigMaps, NoConfigMaps, with_config_maps
from service.admission.impossible import CARD_FORMAT, is_impossible, is_impossible_plan
from service.admission.judgement import Finding, Share, noted, serving_finding, softened, training_finding
from service.admission.kinds import JUDGED_OWNERS, pod_groups
from service.admission.lanes import Lane, lanes, not_at_hand, nothing_read
from service.admission.launches import CannotRun, Launch, NotRead, Read
from service.admission.mig import slice_bytes
from service.admission.object_parts import annotations_of
from service.admission.planned import Planned, planned_finding, read_planned
from service.admission.policy import Policies, Policy
from service.admission.review import Answer, Review
from service.admission.shared_gpus import Sharing, sharing_finding
from service.admission.sizing import Sized
from service.admission.training_runtimes import GROUP_AND_KIND, NoRuntimes, TrainingRuntimes, with_runtime
from service.admission.workloads import PodGroup
from service.errors import DatabaseUnavailable, PlanNotFound
from service.persistence.records import StoredPlan
from service.recently_used import RecentlyUsed
from service.requests.configs import special_number

# Nothing here takes long but a plan nobody asked before; the API server waits 10 s by default, 30 at the most.
LONGEST_SECONDS = 8.0
# Planning is Python and numpy: more at once than this only makes each slower.
MOST_AT_ONCE = 4
# A stored plan never changes under its id, so what was read of it once needs no database again.
MOST_REMEMBERED_PLANS = 1_024
UNJUDGED = "Plimsoll did not judge this:"
NO_PLAN = "no plan can be made of it as it is."
SHARED_IN_TIME = "the pod gets one card for them, which is shared in time"
ADVICE_CUT_SHORT = "There was no time to look for every way out; asking again may name more."
OTHER_COMMAND = "The script may start another command instead."
SHOWN_BESIDE = "the container that is shown the node's GPUs runs on the same one"

# The degrees that multiply to a command's ranks.
RANKS = ("tensor_parallel", "pipeline_parallel", "context_parallel", "data_parallel", "attention_data_parallel")

log = structlog.get_logger(__name__)


class Answers(Protocol):
    """Answers planning requests without storing them."""

    def remembered(self, request: Mapping[str, Any]) -> Sized | None:
        """Return the answer where it is at hand already; takes no time."""
        ...

    def answer(self, request: Mapping[str, Any], budget: Budget) -> Sized:
        """Return the planner's answer to a request's body; raises PlanningStopped once the budget is spent."""
        ...


class StoredPlans(Protocol):
    """Finds stored plans."""

    async def get(self, plan_id: str) -> StoredPlan:
        """Return a stored plan; raises PlanNotFound and DatabaseUnavailable."""
        ...


class _NotJudged(Exception):
    """Something is missing; the text says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """What one review is judged under: its namespace's policy, and the time there is."""

    policy: Policy
    budget: Budget


class AdmissionService:
    """Answers reviews."""

    def __init__(
        self,
        *,
        answers: Answers,
        plans: StoredPlans,
        catalogue: Catalogue,
        policies: Policies,
        config_maps: ConfigMaps | None = None,
        runtimes: TrainingRuntimes | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        """Take what a judgement needs; ConfigMaps and training runtimes are not read where nothing is given for it.

        `clock` tells how much of a review's time is left.
        """
        self._clock = clock
        self._runtimes = runtimes or NoRuntimes()
        self._config_maps = config_maps or NoConfigMaps()
        self._answers = answers
        self._plans = plans
        self._catalogue = catalogue
        self._policies = policies
        self._planned: RecentlyUsed[str, Planned] = RecentlyUsed(MOST_REMEMBERED_PLANS)
        # Its own: a hub mirror that holds up everyone else's threads holds up no workload.
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="admission")

    async def review(self, review: Review, *, seconds: float = LONGEST_SECONDS) -> Answer:
        """Return the answer to a review; whatever goes wrong inside is answered as the policy says."""
        policy = self._policies.of(review.namespace)
        if policy.mode == "off" or review.object is None or not _is_launched_by(review):
            return Answer(is_allowed=True)
        seconds = min(seconds, LONGEST_SECONDS)
        terms = _Terms(policy=policy, budget=Budget.of(seconds, self._clock))
        try:
            async with asyncio.timeout(seconds):
                findings = [finding async for finding in self._findings(review, terms)]
        except PlimsollError as error:
            return _unjudged(error.detail)
        except _NotJudged as missing:
            return _unjudged(f"{missing}.")
        except Exception as error:
            # In the path of every job: the namespace's policy decides, not the accident.
            log.exception("review not judged", uid=review.uid, namespace=review.namespace, name=review.name)
            return _in_trouble(policy, error)
        return _decided(policy, findings)

    async def _findings(self, review: Review, terms: _Terms) -> AsyncIterator[Finding]:
        manifest = review.object or {}
        if (review.group, review.kind) == GROUP_AND_KIND:
            manifest = await with_runtime(manifest, review.namespace, self._runtimes)
        for group in pod_groups(review.group, review.kind, manifest):
            if group.replicas == 0:
                continue
            annotations = {**annotations_of(manifest), **group.annotations}
            if lanes(group, self._catalogue):
                group = await with_config_maps(group, review.namespace, self._config_maps)
            found = lanes(group, self._catalogue)
            shares: list[Share] = []
            for lane in found:
                findings = [finding async for finding in self._of_lane(lane, group, annotations, terms)]
                shares += [finding.share for finding in findings if finding.share is not None][:1]
                for finding in findings:
                    yield finding
            if len(found) > 1 and found[0].demand.is_shared:
                together = sharing_finding(Sharing(shares=shares, is_certain=False, reason=SHARED_IN_TIME))
                if together is not None:
                    yield together

    async def _of_lane(
        self, lane: Lane, group: PodGroup, annotations: Mapping[str, str], terms: _Terms
    ) -> AsyncIterator[Finding]:
        """Yield what is to be said of one lane; what is missing of it hides nothing that is said of the others."""
        try:
            if PLAN_ID in annotations:
                yield await self._against_stored(annotations[PLAN_ID], lane, group)
            elif PLAN in annotations:
                yield await self._inline(annotations[PLAN], lane, terms.budget)
            else:
                async for finding in self._commands(lane, terms):
                    yield finding
        except PlimsollError as error:
            yield Finding(weight="unjudged", text=f"{NO_PLAN} {error.detail}")
        except _NotJudged as missing:
            yield Finding(weight="unjudged", text=f"{missing}.")

    async def _against_stored(self, plan_id: str, lane: Lane, group: PodGroup) -> Finding:
        planned = self._planned.get(plan_id)
        if planned is None:
            try:
                planned = read_planned(await self._plans.get(plan_id))
            except PlanNotFound:
                return Finding(weight="refuse", text=f"Plan {plan_id[:80]} of annotation {PLAN_ID} is not known here.")
            except DatabaseUnavailable as error:
                raise _NotJudged(f"plan {plan_id[:80]} cannot be looked up ({error.detail})") from error
            self._planned.put(plan_id, planned)
        return planned_finding(planned, lane, group.replicas, self._catalogue)

    async def _inline(self, text: str, lane: Lane, budget: Budget) -> Finding:
        try:
            request = json.loads(text, parse_constant=special_number)
        except (ValueError, RecursionError) as error:
            raise _NotJudged(f"annotation {PLAN} is not JSON ({error})") from error
        if not isinstance(request, dict):
            raise _NotJudged(f"annotation {PLAN} is not a planning request")
        hardware = request.get("hardware")
        planned = hardware.get("gpus") if isinstance(hardware, dict) else None
        if isinstance(planned, int) and planned != lane.gpus:
            return Finding(
                weight="refuse",
                text=f"Annotation {PLAN} plans {planned} GPUs, the workload asks for {lane.gpus}.",
            )
        try:
            return await self._judged(f"The plan of annotation {PLAN}", request, budget)
        except PlimsollError as error:
            if not is_impossible_plan(error):
                raise
            return Finding(weight="refuse", text=f"The plan of annotation {PLAN} cannot run: {error.detail}")

    async def _commands(self, lane: Lane, terms: _Terms) -> AsyncIterator[Finding]:
        found = lane.launches()
        if not found:
            missing = not_at_hand(*lane.containers)
            raise _NotJudged(f"{nothing_read(lane)}. {missing or f'Describe the job in an annotation {PLAN}'}")
        judged = [(launch, await self._read(launch, lane, terms)) for launch in found]
        may_be_another = any(finding.weight != "refuse" for _, finding in judged)
        launched = [(launch, finding) for launch, finding in judged if isinstance(launch, Launch)]
        async for finding in self._together(launched, lane, terms):
            yield finding
        for launch, finding in judged:
            is_conditional = not isinstance(launch, NotRead) and launch.is_conditional
            yield softened(finding, OTHER_COMMAND) if is_conditional and may_be_another else finding
        for launch, _ in launched:
            for note in launch.notes:
                yield Finding(weight="warn", text=f"{launch.program}: {note}.")

    async def _read(self, read: Read, lane: Lane, terms: _Terms) -> Finding:
        """Return what to say of one command; what is missing of it hides nothing that is said of the others."""
        if isinstance(read, CannotRun):
            return Finding(weight="refuse", text=f"{read.program} cannot run: {read.reason}.")
        if isinstance(read, NotRead):
            return Finding(weight="unjudged", text=f"{read.reason}.")
        try:
            return await self._launch(read, lane, terms)
        except PlimsollError as error:
            return Finding(weight="unjudged", text=f"{NO_PLAN} {error.detail}")
        except _NotJudged as missing:
            return Finding(weight="unjudged", text=f"{missing}.")

    async def _together(
        self, judged: Sequence[tuple[Launch, Finding]], lane: Lane, terms: _Terms
    ) -> AsyncIterator[Finding]:
        """Yield what engines ask for beside each other on the same GPU."""
        cohorts: dict[int, list[Share]] = {}
        for launch, finding in judged:
            if launch.cohort is not None and finding.share is not None and not launch.spans_pods:
                cohorts.setdefault(launch.cohort, []).append(finding.share)
        for shares in cohorts.values():
            together = sharing_finding(Sharing(shares=shares, is_certain=True))
            if together is not None:
                yield together
        beside = [(await self._launch(launch, lane, terms)).share for launch in lane.beside()]
        first = [finding.share for _, finding in judged[:1]]
        shares = [share for share in (*first, *beside) if share is not None]
        together = sharing_finding(Sharing(shares=shares, is_certain=False, reason=SHOWN_BESIDE))
        if beside and together is not None:
            yield together

    async def _launch(self, launch: Launch, lane: Lane, terms: _Terms) -> Finding:
        shortage = _shortage(launch, lane)
        if shortage is not None:
            return shortage
        hardware = _hardware(launch, lane, terms.policy)
        try:
            finding = await self._judged(
                launch.program,
                {**launch.request, "hardware": hardware},
                terms.budget,
                shortens=launch.shortens,
                takes_more_gpus=lane.demand.mig_profile is None,
            )
        except PlimsollError as error:
            if CARD_FORMAT in error.rules and "weights" not in launch.request["serving"]:
                # The format is the checkpoint's, and the engine's own choice is the one that the card computes in.
                return await self._launch(_in_half(launch), lane, terms)
            if is_impossible(error, launch):
                return Finding(weight="refuse", text=f"{launch.program} cannot run: {error.detail}")
            raise
        if finding.weight != "refuse":
            return finding
        if launch.lowering:
            return softened(finding, f"{', '.join(launch.lowering)} may leave more, and is not taken into account.")
        for request in launch.leaner:
            if await self._may_fit(launch.program, {**request, "hardware": hardware}, terms.budget):
                return softened(finding, launch.leaner_words)
        return finding

    async def _may_fit(self, program: str, request: Mapping[str, Any], budget: Budget) -> bool:
        try:
            return (await self._judged(program, request, budget)).weight != "refuse"
        except PlimsollError:
            # An older version lacks what the command asks for.
            return False

    async def _judged(
        self,
        program: str,
        request: Mapping[str, Any],
        budget: Budget,
        *,
        shortens: bool = False,
        takes_more_gpus: bool = True,
    ) -> Finding:
        """Return what to say of a plan; raises TimeoutError where there was no time to make it."""
        sized = self._answers.remembered(request)
        if sized is None:
            loop = asyncio.get_running_loop()
            try:
                sized = await loop.run_in_executor(self._threads, self._answers.answer, request, budget)
            except PlanningStopped as error:
                # The review's time is over: what the policy says of that decides, as where the event loop saw it first.
                raise TimeoutError from error
        answer = sized.answer
        if isinstance(answer, TrainingAnswer):
            finding = training_finding(program, answer)
        else:
            finding = serving_finding(
                program,
                answer,
                shortens=shortens,
                takes_more_gpus=takes_more_gpus,
                quantizes=not sized.is_stored_quantized,
            )
        return finding if sized.has_all_advice else noted(finding, ADVICE_CUT_SHORT)


def _is_launched_by(review: Review) -> bool:
    """Return whether the review is of something new that nobody judged before."""
    if review.operation not in ("CREATE", "UPDATE"):
        return False
    manifest, before = review.object or {}, review.old_object
    if review.operation == "UPDATE" and before is not None:
        same_pods = _same_pods(review.group, review.kind, manifest, before)
        if same_pods and _ours(annotations_of(manifest)) == _ours(annotations_of(before)):
            return False
    metadata = manifest.get("metadata")
    if isinstance(metadata, dict) and metadata.get("deletionTimestamp"):
        # Nothing starts any more, and a finalizer that cannot be taken off keeps it for good.
        return False
    owners = metadata.get("ownerReferences") if isinstance(metadata, dict) else None
    kinds = [owner.get("kind") for owner in owners if isinstance(owner, dict)] if isinstance(owners, list) else []
    return not any(isinstance(kind, str) and kind in JUDGED_OWNERS for kind in kinds)


def _same_pods(group: str, kind: str, manifest: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Return whether an update leaves the pods of one job or replica as they were: a scaled deployment starts more.

    Nothing was judged of one that had no replica.
    """
    if manifest.get("spec") == before.get("spec"):
        return True
    try:
        now, then = pod_groups(group, kind, manifest), pod_groups(group, kind, before)
    except PlimsollError:
        return False
    same = [each.members for each in now] == [each.members for each in then]
    return bool(now) and same and all(each.replicas != 0 for each in then)


def _ours(annotations: Mapping[str, str]) -> Mapping[str, str]:
    return {name: text for name, text in annotations.items() if name in (PLAN, PLAN_ID)}


def _in_half(launch: Launch) -> Launch:
    """Return a serving command with its weights in fp16."""
    in_half = {**launch.request, "serving": {**launch.request["serving"], "weights": "fp16"}}
    return replace(launch, request=in_half, leaner=())


def _needed_gpus(launch: Launch) -> int:
    """Return the GPUs of a command's own degrees."""
    layout = launch.request["layout"]
    return math.prod(int(layout.get(name, 1)) for name in RANKS)


def _shortage(launch: Launch, lane: Lane) -> Finding | None:
    needed = _needed_gpus(launch)
    if needed <= lane.gpus or launch.spans_pods:
        return None
    return Finding(
        weight="refuse",
        text=f"{launch.program} needs {needed} GPUs by its own degrees, the pods ask for {lane.gpus}.",
    )


def _hardware(launch: Launch, lane: Lane, policy: Policy) -> Mapping[str, Any]:
    demand = lane.demand
    if demand.partition is not None:
        raise _NotJudged(f"a partition of a GPU ({demand.partition}) has no entry in the catalogue")
    gpu = demand.gpu or policy.gpu
    if gpu is None:
        said = f" ({demand.unknown} is in no catalogue)" if demand.unknown else ""
        raise _NotJudged(f"no node selector or affinity names the GPU{said}, and the policy has no default for it")
    gpus = _needed_gpus(launch)
    hardware: dict[str, Any] = {"gpu": gpu, "gpus": gpus}
    if max(lane.gpus, gpus) > demand.gpus_per_pod:
        # A pod alone says nothing of its node: a way out with more GPUs may well be on the same one.
        hardware["gpus_per_node"] = min(demand.gpus_per_pod, gpus)
    if demand.memory_bytes is not None:
        return {**hardware, "override": {"memory_bytes": demand.memory_bytes}}
    if demand.mig_profile is None:
        return hardware
    memory_bytes = slice_bytes(gpu, demand.mig_profile)
    if memory_bytes is None:
        raise _NotJudged(f"no listing tells the memory of a MIG slice {demand.mig_profile[:40]} of {gpu}")
    return {**hardware, "override": {"memory_bytes": memory_bytes}}


def _decided(policy: Policy, findings: list[Finding]) -> Answer:
    refusals = [finding.text for finding in findings if finding.weight == "refuse"]
    warnings = [finding.text for finding in findings if finding.weight == "warn"]
    warnings += [f"{UNJUDGED} {finding.text}" for finding in findings if finding.weight == "unjudged"]
    said = "; ".join(finding.text for finding in findings if finding.weight != "unjudged")
    annotations = {"plimsoll": said} if said else {}
    if refusals and policy.mode == "enforce":
        return Answer(
            is_allowed=False, message=" ".join(refusals), warnings=tuple(warnings), audit_annotations=annotations
        )
    is_judged = bool(refusals) or all(finding.weight != "unjudged" for finding in findings)
    return Answer(is_allowed=True, is_judged=is_judged, warnings=(*refusals, *warnings), audit_annotations=annotations)


def _unjudged(reason: str) -> Answer:
    return Answer(is_allowed=True, is_judged=False, warnings=(f"{UNJUDGED} {reason}",))


def _in_trouble(policy: Policy, error: Exception) -> Answer:
    reason = (
        "Plimsoll could not judge this in time."
        if isinstance(error, TimeoutError)
        else "Plimsoll failed to judge this."
    )
    if policy.on_error == "deny":
        return Answer(
            is_allowed=False,
            is_judged=False,
            message=f"{reason} The policy of this namespace refuses what was not judged.",
        )
    return Answer(
        is_allowed=True, is_judged=False, warnings=(f"{reason} The policy of this namespace lets it through.",)
    )
