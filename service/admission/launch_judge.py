"""One launch command, or one planning request, judged on the GPUs that the pods ask for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

from plimsoll.planners.ground.errors import PlanningStopped, PlimsollError
from plimsoll.planners.plans import TrainingAnswer
from plimsoll.planners.serving.answer import ServingAnswer, ServingMemory
from plimsoll.planners.serving.releases.cards import CARD_FORMAT
from plimsoll.planners.serving.releases.profile import engine_profile
from plimsoll.planners.serving.weights.scale_blocks import SCALE_BLOCKS
from plimsoll.service.admission.budget import Budget
from plimsoll.service.admission.findings import Finding, NotJudged, noted, softened
from plimsoll.service.admission.impossible import is_doubtful, is_impossible
from plimsoll.service.admission.judgement import serving_finding, training_finding
from plimsoll.service.admission.lanes import Lane
from plimsoll.service.admission.policy import Policy
from plimsoll.service.admission.sizing import Sized
from plimsoll.service.engines.engine import Engine, engines
from plimsoll.service.engines.quantization import conflict
from plimsoll.service.workloads.commands.launches import Launch, as_started
from plimsoll.service.workloads.objects.mig import slice_bytes

# Planning is Python and numpy: more at once than this only makes each slower.
MOST_AT_ONCE = 4
ADVICE_CUT_SHORT = "There was no time to look for every way out; asking again may name more."

# What the engine's option is called, and the format that it quantizes.
FP8, PLAIN = "fp8", "bf16"
# The degrees that multiply to a command's ranks.
RANKS = ("tensor_parallel", "pipeline_parallel", "context_parallel", "data_parallel", "attention_data_parallel")


class Answers(Protocol):
    """Answers planning requests without storing them."""

    def remembered(self, request: Mapping[str, Any]) -> Sized | None:
        """Return the answer where it is at hand already; takes no time."""
        ...

    def answer(self, request: Mapping[str, Any], budget: Budget) -> Sized:
        """Return the planner's answer to a request's body; raises PlanningStopped once the budget is spent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What one review is judged under: its namespace's policy, and the time there is."""

    policy: Policy
    budget: Budget


class LaunchJudge:
    """Judges launch commands and planning requests by planning them."""

    def __init__(self, answers: Answers) -> None:
        """Take what plans."""
        self._answers = answers
        # Its own: a hub mirror that holds up everyone else's threads holds up no workload.
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="admission")

    async def launch(self, launch: Launch, lane: Lane, terms: Terms) -> Finding:
        """Return what to say of a command; one that leaves something unsaid is refused or not judged.

        Where an affinity leaves several GPUs to choose from, only what none of them can run is refused.
        """
        if lane.demand.choices:
            each = [replace(lane, demand=replace(lane.demand, gpu=gpu, choices=())) for gpu in lane.demand.choices]
            findings = [await self.launch(launch, chosen, terms) for chosen in each]
            refusing = [finding for finding in findings if finding.weight == "refuse"]
            if len(refusing) in (0, len(findings)):
                return findings[0]
            gpu = lane.demand.choices[findings.index(refusing[0])]
            return softened(refusing[0], f"So it is on {gpu}; on another GPU that the node affinity allows it may run.")
        finding = await self._launch(launch, lane, terms)
        return (
            finding
            if not launch.unsaid or _is_refused_anyway(finding)
            else Finding(weight="unjudged", text=f"{launch.unsaid}.")
        )

    async def _launch(self, launch: Launch, lane: Lane, terms: Terms) -> Finding:
        shortage = _shortage(launch, lane)
        if shortage is not None:
            return shortage
        hardware = _hardware(launch, lane, terms.policy)
        request = {**as_started(launch), "hardware": hardware}
        try:
            sized = await self._sized(request, terms.budget)
            if sized.is_mixture and _shares_experts(launch):
                return await self._launch(_with_shared_experts(launch), lane, terms)
            mismatch = conflict(launch.quantization, sized.stored_methods)
            if mismatch is not None and _engine(launch).compares_schemes:
                return _cannot_run(launch, mismatch)
            finding = await self.planned(
                launch.program,
                request,
                terms.budget,
                shortens=launch.shortens,
                takes_more_gpus=lane.demand.mig_profile is None,
            )
            if finding.weight != "refuse" and await self._is_beyond_loading(launch, request, sized, terms.budget):
                return _cannot_run(launch, _loaded_whole(launch))
        except PlimsollError as error:
            if CARD_FORMAT in error.rules and "weights" not in launch.request["serving"]:
                # The format is the checkpoint's, and the engine's own choice is the one that the card computes in.
                return await self._launch(_in_half(launch), lane, terms)
            if is_impossible(error, launch):
                return _cannot_run(launch, " ".join((error.detail, *_typed_ways(launch, error))))
            if is_doubtful(error):
                return Finding(weight="warn", text=f"{launch.program} may not start: {error.detail}")
            raise
        if finding.weight != "refuse":
            return finding
        if launch.memory_saving:
            named = ", ".join(launch.memory_saving)
            return softened(finding, f"{named} may leave more, and is not taken into account.")
        for leaner in launch.leaner:
            if await self._may_fit(launch.program, {**leaner, "hardware": hardware}, terms.budget):
                return softened(finding, launch.leaner_words)
        return finding

    async def _is_beyond_loading(
        self, launch: Launch, request: Mapping[str, Any], sized: Sized, budget: Budget
    ) -> bool:
        """Return whether an engine that quantizes only what it has loaded whole has no room for that."""
        if sized.is_stored_quantized or launch.quantization != FP8 or not isinstance(sized.answer, ServingAnswer):
            return False
        settings = sized.answer.plan.settings
        if not engine_profile(settings.engine, settings.engine_version).quantizes_after_loading:
            return False
        serving = {**request["serving"], "weights": PLAIN}
        loaded = (await self._sized({**request, "serving": serving}, budget)).answer.plan.memory
        return isinstance(loaded, ServingMemory) and loaded.items.weights > loaded.limit_bytes

    async def _may_fit(self, program: str, request: Mapping[str, Any], budget: Budget) -> bool:
        try:
            return (await self.planned(program, request, budget)).weight != "refuse"
        except PlimsollError:
            # An older version lacks what the command asks for.
            return False

    async def planned(
        self,
        program: str,
        request: Mapping[str, Any],
        budget: Budget,
        *,
        shortens: bool = False,
        takes_more_gpus: bool = True,
    ) -> Finding:
        """Return what to say of a plan; raises TimeoutError where there was no time to make it."""
        sized = await self._sized(request, budget)
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

    async def _sized(self, request: Mapping[str, Any], budget: Budget) -> Sized:
        """Return the planner's answer; raises TimeoutError where there was no time to make it."""
        sized = self._answers.remembered(request)
        if sized is not None:
            return sized
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._answers.answer, request, budget)
        except PlanningStopped as error:
            # The review's time is over: what the policy says of that decides, as where the event loop saw it first.
            raise TimeoutError from error


def _is_refused_anyway(finding: Finding) -> bool:
    """Return whether a refusal is one of any version of an engine: by a rule, or by the weights alone."""
    share = finding.share
    return finding.weight == "refuse" and (share is None or share.weight_bytes > share.memory_bytes)


def _in_half(launch: Launch) -> Launch:
    """Return a serving command with its weights in fp16."""
    in_half = {**launch.request, "serving": {**launch.request["serving"], "weights": "fp16"}}
    return replace(launch, request=in_half, leaner=())


def _engine(launch: Launch) -> Engine:
    """Return the engine of a serving command."""
    return engines()[str(launch.engine)]


def _loaded_whole(launch: Launch) -> str:
    return (
        "this version loads all weights in 16 bits before it quantizes any, which the GPUs have no room for: take a "
        f"checkpoint in fp8, {_engine(launch).quantizes_by_weight_since} or later, or more GPUs"
    )


def _shares_experts(launch: Launch) -> bool:
    """Return whether a command's replicas would divide the experts of a mixture among them."""
    has_replicas = int(launch.request["layout"].get("data_parallel", 1)) > 1
    return launch.kind == "infer" and has_replicas and _engine(launch).replicas_share_experts


def _with_shared_experts(launch: Launch) -> Launch:
    """Return a command of a mixture with its data-parallel ranks as what they are: ranks of attention alone.

    Without expert parallelism too all of them divide each expert among them, as tensor ranks do.
    """

    def shared(request: Mapping[str, Any]) -> Mapping[str, Any]:
        degrees = dict(request["layout"])
        ranks = degrees.pop("data_parallel")
        return {**request, "layout": {**degrees, "attention_data_parallel": ranks}}

    return replace(launch, request=shared(launch.request), leaner=tuple(shared(each) for each in launch.leaner))


def _needed_gpus(launch: Launch) -> int:
    """Return the GPUs of a command's own degrees."""
    layout = launch.request["layout"]
    return math.prod(int(layout.get(name, 1)) for name in RANKS)


def _shortage(launch: Launch, lane: Lane) -> Finding | None:
    """Return what a command's ranks lack of the pods' GPUs, None where each has one or may have it elsewhere."""
    needed, each = _needed_gpus(launch), lane.demand.gpus_per_pod
    if launch.gpus_per_node is not None and launch.gpus_per_node > each:
        return _lacking(launch, f"{launch.gpus_per_node} GPUs on each node by its own degrees, a pod asks for {each}")
    if lane.demand.mig_profile is not None and min(needed, each) > 1 and not launch.spans_pods:
        # NVIDIA MIG User Guide, "CUDA Device Enumeration": however many a container has, a process sees the first.
        return _cannot_run(launch, f"it takes {needed} GPUs, and of its {each} MIG slices each process sees one")
    is_all_here = lane.is_whole and not launch.is_elsewhere
    if launch.nodes is not None and launch.nodes > lane.pods:
        if not is_all_here:
            return None
        pods = f"{lane.pods} pod{'s' if lane.pods > 1 else ''} with GPUs"
        return _lacking(launch, f"{launch.nodes} nodes by its own arguments, and has {pods}")
    if needed > lane.gpus and (is_all_here or not launch.spans_pods):
        return _lacking(launch, f"{needed} GPUs by its own degrees, the pods ask for {lane.gpus}")
    return None


def _typed_ways(launch: Launch, error: PlimsollError) -> tuple[str, ...]:
    """Return how the command says what an error asks for, where that is known."""
    engine = _engine(launch)
    if SCALE_BLOCKS in error.rules and "expert_parallel" in error.detail:
        return (engine.whole_experts,)
    return tuple(engine.ways[rule] for rule in error.rules if rule in engine.ways)


def _cannot_run(launch: Launch, reason: str) -> Finding:
    return Finding(weight="refuse", text=f"{launch.program} cannot run: {reason.rstrip('.')}.")


def _lacking(launch: Launch, what: str) -> Finding:
    return Finding(weight="refuse", text=f"{launch.program} needs {what}.")


def _hardware(launch: Launch, lane: Lane, policy: Policy) -> Mapping[str, Any]:
    demand = lane.demand
    if demand.partition is not None:
        raise NotJudged(f"a partition of a GPU ({demand.partition}) has no entry in the catalogue")
    gpu = demand.gpu or policy.gpu
    if gpu is None:
        said = f" ({demand.unknown} is in no catalogue)" if demand.unknown else ""
        raise NotJudged(f"no node selector or affinity names the GPU{said}, and the policy has no default for it")
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
        raise NotJudged(f"no listing tells the memory of a MIG slice {demand.mig_profile[:40]} of {gpu}")
    return {**hardware, "override": {"memory_bytes": memory_bytes}}
