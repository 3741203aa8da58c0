"""The webhook's decision: what the object would launch, what that needs, and what the policy makes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence

import structlog

from plimsoll.planners.catalogue import Catalogue
from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.service.admission.annotated import AnnotatedPlans, StoredPlans
from plimsoll.service.admission.budget import Budget, Clock
from plimsoll.service.admission.decision import decided, in_trouble, unjudged
from plimsoll.service.admission.findings import Finding, NotJudged, Share, softened
from plimsoll.service.admission.kinds import pod_groups
from plimsoll.service.admission.lanes import Lane, lanes, not_at_hand, nothing_read
from plimsoll.service.admission.launch_judge import Answers, LaunchJudge, Terms
from plimsoll.service.admission.launched import is_launched_by
from plimsoll.service.admission.policy import Policies
from plimsoll.service.admission.review import Answer, Review
from plimsoll.service.admission.shared_gpus import Sharing, sharing_finding
from plimsoll.service.workloads.commands.launches import CannotRun, Launch, NotRead, Read
from plimsoll.service.workloads.objects.annotations import PLAN, PLAN_ID
from plimsoll.service.workloads.objects.config_maps import ConfigMaps, NoConfigMaps, with_config_maps
from plimsoll.service.workloads.objects.object_parts import annotations_of
from plimsoll.service.workloads.objects.pods import PodGroup
from plimsoll.service.workloads.objects.training_runtimes import (
    GROUP_AND_KIND,
    NoRuntimes,
    TrainingRuntimes,
    with_runtime,
)

# Nothing here takes long but a plan nobody asked before; the API server waits 10 s by default, 30 at the most.
LONGEST_SECONDS = 8.0
NO_PLAN = "no plan can be made of it as it is."
SHARED_IN_TIME = "the pod gets one card for them, which is shared in time"
OTHER_COMMAND = "The script may start another command instead."
SHOWN_BESIDE = "the container that is shown the node's GPUs runs on the same one"

log = structlog.get_logger(__name__)


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
        self._launches = LaunchJudge(answers)
        self._annotated = AnnotatedPlans(plans, catalogue, self._launches)
        self._catalogue = catalogue
        self._policies = policies

    async def review(self, review: Review, *, seconds: float = LONGEST_SECONDS) -> Answer:
        """Return the answer to a review; whatever goes wrong inside is answered as the policy says."""
        policy = self._policies.of(review.namespace)
        if policy.mode == "off" or review.object is None or not is_launched_by(review):
            return Answer(is_allowed=True)
        seconds = min(seconds, LONGEST_SECONDS)
        terms = Terms(policy=policy, budget=Budget.of(seconds, self._clock))
        try:
            async with asyncio.timeout(seconds):
                findings = [finding async for finding in self._findings(review, terms)]
        except PlimsollError as error:
            return unjudged(error.detail)
        except NotJudged as missing:
            return unjudged(f"{missing}.")
        except Exception as error:
            # In the path of every job: the namespace's policy decides, not the accident.
            log.exception("review not judged", uid=review.uid, namespace=review.namespace, name=review.name)
            return in_trouble(policy, error)
        return decided(policy, findings)

    async def _findings(self, review: Review, terms: Terms) -> AsyncIterator[Finding]:
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
        self, lane: Lane, group: PodGroup, annotations: Mapping[str, str], terms: Terms
    ) -> AsyncIterator[Finding]:
        """Yield what is to be said of one lane; what is missing of it hides nothing that is said of the others."""
        try:
            if PLAN_ID in annotations:
                yield await self._annotated.stored(annotations[PLAN_ID], lane, group)
            elif PLAN in annotations:
                yield await self._annotated.inline(annotations[PLAN], lane, terms.budget)
            else:
                async for finding in self._commands(lane, terms):
                    yield finding
        except PlimsollError as error:
            yield Finding(weight="unjudged", text=f"{NO_PLAN} {error.detail}")
        except NotJudged as missing:
            yield Finding(weight="unjudged", text=f"{missing}.")

    async def _commands(self, lane: Lane, terms: Terms) -> AsyncIterator[Finding]:
        found = lane.launches()
        if not found:
            missing = not_at_hand(*lane.containers)
            raise NotJudged(f"{nothing_read(lane)}. {missing or f'Describe the job in an annotation {PLAN}'}")
        judged = [(launch, await self._read(launch, lane, terms)) for launch in found]
        may_be_another = any(finding.weight != "refuse" for _, finding in judged)
        launched = [(launch, finding) for launch, finding in judged if isinstance(launch, Launch)]
        async for finding in self._together(launched, lane, terms):
            yield finding
        for launch, finding in judged:
            is_conditional = not isinstance(launch, NotRead) and launch.is_conditional
            yield softened(finding, OTHER_COMMAND) if is_conditional and may_be_another else finding
        for launch, finding in launched:
            for note in launch.notes if finding.weight != "unjudged" else ():
                yield Finding(weight="warn", text=f"{launch.program}: {note}.")

    async def _read(self, read: Read, lane: Lane, terms: Terms) -> Finding:
        """Return what to say of one command; what is missing of it hides nothing that is said of the others."""
        if isinstance(read, CannotRun):
            return Finding(weight="refuse", text=f"{read.program} cannot run: {read.reason}.")
        if isinstance(read, NotRead):
            return Finding(weight="unjudged", text=f"{read.reason}.")
        try:
            return await self._launches.launch(read, lane, terms)
        except PlimsollError as error:
            return Finding(weight="unjudged", text=f"{NO_PLAN} {error.detail}")
        except NotJudged as missing:
            return Finding(weight="unjudged", text=f"{missing}.")

    async def _together(
        self, judged: Sequence[tuple[Launch, Finding]], lane: Lane, terms: Terms
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
        beside = [(await self._launches.launch(launch, lane, terms)).share for launch in lane.beside()]
        first = [finding.share for _, finding in judged[:1]]
        shares = [share for share in (*first, *beside) if share is not None]
        together = sharing_finding(Sharing(shares=shares, is_certain=False, reason=SHOWN_BESIDE))
        if beside and together is not None:
            yield together
