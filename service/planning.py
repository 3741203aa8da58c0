"""Plans: asked for, remembered, stored and found again.

A plan's id is a digest of all it depends on, so the same question finds the same
stored answer on every replica, to the last byte. What is answered is stored first.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

import numpy as np

from planners.catalogue import Catalogue
from planners.errors import InvalidQuestion, NotYetAvailable, PlanningStopped, PlimsollError, UnknownGpu, UnknownModel
from planners.fleet import plan_fleet
from planners.hardware import Hardware, SiteEfficiency
from planners.huggingface.stored_formats import stored_formats
from planners.inference import plan_serving
from planners.plans import Layout
from planners.training import plan_training
from planners.version import planner_version
from service.artifacts.checkpoint import Checkpoint
from service.artifacts.kubernetes import Placement
from service.artifacts.kubernetes_training import training_manifests
from service.artifacts.serving import serving_artifacts
from service.artifacts.slurm import slurm_script
from service.artifacts.training import training_artifacts
from service.calibrating import UNCALIBRATED
from service.canonical import canonical_json, digest
from service.errors import PlanNotFound
from service.gpus import gpu_figures, resolve_fleet
from service.models import ModelResolver, ResolvedModel
from service.persistence.database import Database
from service.persistence.records import Page, PlanKind, PlanSummary, SeenModel, StoredPlan
from service.plan_answers import (
    InferPlanBody,
    PlanIdentity,
    TimedSearch,
    TrainPlanBody,
    body_json,
    infer_body,
    train_body,
)
from service.recently_used import RecentlyUsed
from service.requests.hardware import Fleet, HardwareRequest
from service.requests.models import HubModel, PathModel
from service.requests.serving import InferRequest
from service.requests.training import TrainRequest
from service.settings import Settings

MOST_REMEMBERED_PLANS = 512
# Once a day a plan that is asked for is looked up again, and noted as asked for: it is kept by that.
REMEMBERED_SECONDS = 86_400.0

# A GPU whose own rates a request replaced is another one than was measured.
CALIBRATED_RATES = ("memory_bytes_per_second", "peak_flops_per_second")

Calibrations: TypeAlias = Callable[[], Awaitable[Mapping[str, SiteEfficiency]]]
# Asked by a planner's thread now and then: whether nobody waits for its answer any more.
ShouldStop = Callable[[], bool]
OnPlanned: TypeAlias = Callable[[PlanKind, TimedSearch], None]

# Planning is Python and numpy: more at once than this only makes each slower.
MOST_AT_ONCE = 4


class PlanningTimedOut(PlimsollError):
    """The search took longer than a request may."""

    code = "planning-timed-out"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAnswer:
    """A stored plan's id, its body as it is sent, and what decides the status."""

    plan_id: str
    kind: PlanKind
    fits: bool
    verdict: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resolved:
    """A request with everything it names found, and its plan's identity."""

    kind: PlanKind
    model: ResolvedModel
    fleet: tuple[Hardware, ...]
    request: Mapping[str, Any]
    identity: PlanIdentity


Answered: TypeAlias = tuple[TrainPlanBody | InferPlanBody, Hardware]


class PlanningService:
    """Answers both kinds of planning question."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        catalogue: Catalogue,
        models: ModelResolver,
        calibrations: Calibrations,
        *,
        on_planned: OnPlanned | None = None,
    ) -> None:
        """Plan on a database; `on_planned` hears of every search that was made, and not of answers found again."""
        self._on_planned = on_planned
        self._database = database
        self._calibrations = calibrations
        self._catalogue = catalogue
        self._timeout_seconds = settings.request_timeout_seconds
        self.models = models
        self._by_request: RecentlyUsed[str, PlannedAnswer] = RecentlyUsed(
            MOST_REMEMBERED_PLANS, seconds=REMEMBERED_SECONDS
        )
        self._by_id: RecentlyUsed[str, PlannedAnswer] = RecentlyUsed(MOST_REMEMBERED_PLANS, seconds=REMEMBERED_SECONDS)
        self._in_flight: dict[str, asyncio.Future[PlannedAnswer]] = {}
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)

    async def plan_train(self, request: TrainRequest) -> PlannedAnswer:
        """Return the plan of a training job; raises PlimsollErrors, and then nothing is stored."""

        def answer(resolved: _Resolved, should_stop: ShouldStop) -> Answered:
            questions = [request.to_question(resolved.model.spec, hardware) for hardware in resolved.fleet]
            started = time.perf_counter()
            if isinstance(request.hardware, Fleet):
                ranked = plan_fleet(questions, should_stop)
                found, hardware = ranked.answer, resolved.fleet[ranked.chosen]
            else:
                found, hardware = plan_training(questions[0], should_stop), resolved.fleet[0]
            seconds = time.perf_counter() - started
            artifacts = {
                **training_artifacts(found.plan.layout, hardware),
                **_cluster_files(resolved, found.plan.layout, hardware),
            }
            assumptions = (*resolved.model.assumptions, *hardware.gpu.assumptions)
            body = train_body(resolved.identity, found, seconds=seconds, artifacts=artifacts, assumptions=assumptions)
            return body, hardware

        return await self._planned("train", request, answer)

    async def plan_infer(self, request: InferRequest) -> PlannedAnswer:
        """Return the plan of a deployment; raises PlimsollErrors, and then nothing is stored."""

        def answer(resolved: _Resolved, _should_stop: ShouldStop) -> Answered:
            hardware = _only(resolved.fleet, request.hardware)
            question = in_stored_formats(request, resolved.model).to_question(resolved.model.spec, hardware)
            started = time.perf_counter()
            found = plan_serving(question)
            seconds = time.perf_counter() - started
            checkpoint = _checkpoint(request, resolved.model)
            placement = Placement(plan_id=resolved.identity.plan_id, gpu=hardware.gpu)
            artifacts = {} if checkpoint is None else serving_artifacts(checkpoint, found.plan, hardware, placement)
            stored = _stored_format_notes(request, resolved.model)
            assumptions = (*resolved.model.assumptions, *stored, *hardware.gpu.assumptions)
            body = infer_body(resolved.identity, found, seconds=seconds, artifacts=artifacts, assumptions=assumptions)
            return body, hardware

        return await self._planned("infer", request, answer)

    async def plan(self, plan_id: str) -> PlannedAnswer:
        """Return a stored plan; raises PlanNotFound."""
        remembered = self._by_id.get(plan_id)
        if remembered is not None:
            return remembered
        return self._remember(await self._database.plans.get(plan_id))

    async def page(
        self,
        *,
        kind: PlanKind | None = None,
        model: str | None = None,
        gpu: str | None = None,
        fits: bool | None = None,
        verdict: str | None = None,
        reader: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[PlanSummary]:
        """Return stored plans, newest first; models and GPUs of the catalogues by any of their names.

        `reader` is the id of a key: only what it may see.
        """
        return await self._database.plans.page(
            kind=kind,
            model=self._model_id(model),
            gpu=self._gpu_id(gpu),
            fits=fits,
            verdict=verdict,
            reader=reader,
            limit=limit,
            cursor=cursor,
        )

    async def _planned(
        self,
        kind: PlanKind,
        request: TrainRequest | InferRequest,
        answer: Callable[[_Resolved, ShouldStop], Answered],
    ) -> PlannedAnswer:
        # What a folder holds, and what a hub calls by a name, may be another model the next time.
        changes = isinstance(request.model, PathModel | HubModel)
        sites = await self._calibrations()
        revisions = {gpu: site.revision for gpu, site in sites.items()}
        key = None if changes else canonical_json([kind, _asked(request), revisions])
        remembered = None if key is None else self._by_request.get(key)
        if remembered is not None:
            return remembered
        resolved = await self._off_the_loop(lambda _should_stop: self._resolve(kind, request, sites))
        planned = await self._once(resolved.identity.plan_id, lambda: self._find_or_plan(resolved, answer))
        if key is not None:
            self._by_request.put(key, planned)
        return planned

    def _resolve(
        self, kind: PlanKind, request: TrainRequest | InferRequest, sites: Mapping[str, SiteEfficiency]
    ) -> _Resolved:
        fleet = tuple(
            dataclasses.replace(hardware, site=self._site(hardware, sites) if kind == "train" else None)
            for hardware in resolve_fleet(request.hardware, self._catalogue)
        )
        model = self.models.resolve(request.model)
        asked: TrainRequest | InferRequest = request
        notes: tuple[str, ...] = ()
        if isinstance(request, InferRequest):
            asked, notes = in_stored_formats(request, model), _stored_format_notes(request, model)
        resolved = {
            **_asked(asked),
            # A plan that says where its formats come from is not the plan of a request that names them.
            **({"stored_formats": notes} if notes else {}),
            "model": model.identity,
            "hardware": (
                {"fleet": [_figures(hardware) for hardware in fleet]}
                if isinstance(request.hardware, Fleet)
                else _figures(fleet[0])
            ),
        }
        revisions = {
            "planner_version": planner_version(),
            "catalogue_revision": self._catalogue.revision,
            "calibration_revision": _calibration_revision(fleet),
        }
        plan_id = digest({"kind": kind, "request": resolved, **revisions})
        identity = PlanIdentity(plan_id=plan_id, **revisions)
        return _Resolved(kind=kind, model=model, fleet=fleet, request=resolved, identity=identity)

    def _site(self, hardware: Hardware, sites: Mapping[str, SiteEfficiency]) -> SiteEfficiency | None:
        """Return the site's efficiencies of these GPUs: parts of the catalogue's rates, which hold of no others."""
        site = sites.get(hardware.gpu.id)
        if site is None:
            return None
        listed = self._catalogue.gpu(hardware.gpu.id)
        same = all(getattr(hardware.gpu, name) == getattr(listed, name) for name in CALIBRATED_RATES)
        return site if same else None

    async def _find_or_plan(
        self, resolved: _Resolved, answer: Callable[[_Resolved, ShouldStop], Answered]
    ) -> PlannedAnswer:
        try:
            return await self._found_again(resolved.identity.plan_id)
        except PlanNotFound:
            stored, search = await self._off_the_loop(
                lambda should_stop: _computed(lambda: _searched(resolved, answer, should_stop))
            )
        if self._on_planned is not None:
            self._on_planned(resolved.kind, search)
        await self._database.plans.put(stored)
        if not resolved.model.is_listed:
            await self._database.models_seen.remember(_seen(resolved.model))
        # Another replica may have stored its own, with another search time, first.
        return self._remember(await self._database.plans.get(stored.plan_id))

    async def _found_again(self, plan_id: str) -> PlannedAnswer:
        """Return a stored plan that is asked for anew; raises PlanNotFound."""
        # Not from memory: a plan that was only looked at may be about to be deleted.
        stored = await self._database.plans.get(plan_id)
        asked_at = stored.last_asked_at
        if asked_at is None or (datetime.now(UTC) - asked_at).total_seconds() > REMEMBERED_SECONDS:
            await self._database.plans.note_asked(plan_id)
        return self._remember(stored)

    async def _once(self, plan_id: str, work: Callable[[], Awaitable[PlannedAnswer]]) -> PlannedAnswer:
        """Do the work for a plan once, however many ask for it at the same time."""
        under_way = self._in_flight.get(plan_id)
        if under_way is None:
            under_way = asyncio.ensure_future(work())
            self._in_flight[plan_id] = under_way
            under_way.add_done_callback(lambda _: self._in_flight.pop(plan_id))
            under_way.add_done_callback(_retrieve_error)
        return await asyncio.shield(under_way)

    async def _off_the_loop(self, work: Callable[[ShouldStop], Any]) -> Any:
        deadline = time.monotonic() + self._timeout_seconds

        def is_late() -> bool:
            return time.monotonic() >= deadline

        async def in_turn() -> Any:
            async with self._turns:
                return await asyncio.to_thread(work, is_late)

        # A thread cannot be stopped from outside: it keeps its turn until it asks whether it is late.
        under_way = asyncio.ensure_future(in_turn())
        under_way.add_done_callback(_retrieve_error)
        try:
            return await asyncio.wait_for(asyncio.shield(under_way), self._timeout_seconds)
        except (TimeoutError, PlanningStopped) as error:
            raise PlanningTimedOut(
                f"No plan was found within {self._timeout_seconds:g} s. Fix some of the layout, or name the number "
                "of GPUs."
            ) from error

    def _remember(self, plan: StoredPlan) -> PlannedAnswer:
        answer = PlannedAnswer(
            plan_id=plan.plan_id, kind=plan.kind, fits=plan.fits, verdict=plan.verdict, body=plan.answer
        )
        self._by_id.put(plan.plan_id, answer)
        return answer

    def _model_id(self, name: str | None) -> str | None:
        """Return the id of a model's alias; models that the catalogue does not list go by their own names."""
        try:
            return None if name is None else self._catalogue.model(name).id
        except UnknownModel:
            return name

    def _gpu_id(self, name: str | None) -> str | None:
        try:
            return None if name is None else self._catalogue.gpu(name).id
        except UnknownGpu:
            return name


def _searched(
    resolved: _Resolved, answer: Callable[[_Resolved, ShouldStop], Answered], should_stop: ShouldStop
) -> tuple[StoredPlan, TimedSearch]:
    body, hardware = answer(resolved, should_stop)
    return _stored(resolved, body, hardware), body.search


def _computed(work: Callable[[], tuple[StoredPlan, TimedSearch]]) -> tuple[StoredPlan, TimedSearch]:
    """Return what the work returns, every number of it finite; raises InvalidQuestion where one would not be."""
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            return work()
    except (FloatingPointError, OverflowError) as error:
        raise InvalidQuestion(
            "These sizes and rates lie so far apart that no number can hold the answer. Look for a slip in them."
        ) from error


def _retrieve_error(done: asyncio.Future[Any]) -> None:
    """Take note of the error, which asyncio would otherwise report as lost once nobody waits any more."""
    if not done.cancelled():
        done.exception()


def in_stored_formats(request: InferRequest, model: ResolvedModel) -> InferRequest:
    """Return the request in the formats of the checkpoint it names, where it leaves them away."""
    stored = model.stored
    return request.in_formats(
        weights=None if stored is None else stored.weights, kv_cache=None if stored is None else stored.kv_cache
    )


def _stored_format_notes(request: InferRequest, model: ResolvedModel) -> tuple[str, ...]:
    """Return what was taken from the name or the config of a quantized checkpoint."""
    stored, serving = model.stored, request.serving
    if stored is None:
        return ()
    taken = [f"'weights' is {stored.weights}"] if serving.weights is None else []
    if serving.kv_cache is None and stored.kv_cache is not None:
        taken.append(f"'kv_cache' is {stored.kv_cache}")
    if not taken:
        return ()
    asked = request.model if isinstance(request.model, str) else "The checkpoint"
    note = f"{asked} holds {model.name} quantized: {' and '.join(taken)}, as the checkpoint is stored."
    if serving.weights is None:
        note += " Every matrix that this format takes is counted in it; such checkpoints may leave some in a wider one."
    return (note,)


def _checkpoint(request: InferRequest, model: ResolvedModel) -> Checkpoint | None:
    """Return what is served of a model of the catalogue; None where no repository's name is known."""
    if not model.is_listed:
        return None
    if model.stored is None:
        return Checkpoint(name=model.name)
    by_config = stored_formats(model.config)
    if by_config is not None and by_config.weights == model.stored.weights:
        return Checkpoint(name=model.name, stored_weights=model.stored.weights)
    # A quantized repository of a listed model: its own name is what was asked for, with its owner's.
    asked = str(request.model)
    return Checkpoint(name=asked, stored_weights=model.stored.weights) if "/" in asked else None


def _cluster_files(resolved: _Resolved, layout: Layout, hardware: Hardware) -> dict[str, str]:
    """Return the launch files of cluster schedulers for a training plan."""
    name, plan_id = resolved.model.name, resolved.identity.plan_id
    manifests = training_manifests(name, layout, hardware, Placement(plan_id=plan_id, gpu=hardware.gpu))
    script = slurm_script(name, layout, hardware, plan_id)
    return manifests if script is None else {"slurm": script, **manifests}


def _asked(request: TrainRequest | InferRequest) -> dict[str, Any]:
    """Return the request with its defaults filled in; proving a plan does not change it."""
    return request.model_dump(mode="json", exclude={"validation"})


def _figures(hardware: Hardware) -> dict[str, Any]:
    return {**dataclasses.asdict(hardware), "gpu": gpu_figures(hardware.gpu)}


def _calibration_revision(fleet: tuple[Hardware, ...]) -> str:
    """Return the revisions of the calibrations that a plan rests on, each once, or the word for none."""
    revisions = dict.fromkeys(hardware.site.revision for hardware in fleet if hardware.site is not None)
    return "+".join(revisions) or UNCALIBRATED


def _only(fleet: tuple[Hardware, ...], asked: HardwareRequest) -> Hardware:
    """Return the one kind of GPUs that a serving request may name."""
    if isinstance(asked, Fleet):
        raise NotYetAvailable(
            "A fleet is not planned for serving yet; ask for one kind of GPU at a time.", pointer="/hardware/fleet"
        )
    return fleet[0]


def _stored(resolved: _Resolved, body: TrainPlanBody | InferPlanBody, hardware: Hardware) -> StoredPlan:
    framework = body.plan.layout.framework if isinstance(body, TrainPlanBody) else body.plan.settings.engine
    return StoredPlan(
        **dataclasses.asdict(resolved.identity),
        kind=resolved.kind,
        request=resolved.request,
        fits=body.fits,
        verdict=body.verdict,
        summary=body.summary,
        model=resolved.model.name,
        gpu=hardware.gpu.id,
        gpus=body.plan.layout.gpus,
        framework=framework,
        model_config=resolved.model.config,
        answer=body_json(body),
    )


def _seen(model: ResolvedModel) -> SeenModel:
    return SeenModel(
        config_hash=digest(model.config), name=model.name, model_type=model.spec.model_type, config=model.config
    )
