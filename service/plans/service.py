"""Plans: asked for, remembered, stored and found again.

A plan's id is a digest of all it depends on, so the same question finds the same
stored answer on every replica, to the last byte. What is answered is stored first.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeAlias

from plimsoll.planners.catalogue import Catalogue
from plimsoll.planners.ground.errors import UnknownGpu, UnknownModel
from plimsoll.planners.ground.hardware import SiteEfficiency
from plimsoll.service.access.rate_limits import StorageLimits
from plimsoll.service.ground.canonical import digest
from plimsoll.service.ground.errors import PlanNotFound
from plimsoll.service.ground.recently_used import RecentlyUsed
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.resolving import ModelResolver
from plimsoll.service.persistence.records import ANY_PLAN, Page, PlanFilter, PlanKind, PlanSummary, StoredPlan
from plimsoll.service.plans.answers import PlanQuestion, TimedSearch
from plimsoll.service.plans.learned_starts import NOTHING_LEARNED, LearnedStarts, nothing_learned
from plimsoll.service.plans.making import Answerer, infer_answer, made_plan, seen_model, stored_bytes, train_answer
from plimsoll.service.plans.questions import QuestionResolver, ResolvedQuestion, asked_parts
from plimsoll.service.plans.store import PlanDatabase
from plimsoll.service.plans.stored_bodies import in_todays_shape
from plimsoll.service.plans.threads import PlanningThreads
from plimsoll.service.requests.models import HubModel, PathModel
from plimsoll.service.requests.serving import InferRequest
from plimsoll.service.requests.training import TrainRequest

MOST_REMEMBERED_PLANS = 512
# In each of two memories, which mostly hold the same answers; an ordinary one takes 10 to 60 kB.
MOST_REMEMBERED_BYTES = 32 * 2**20
# Once a day a plan that is asked for is looked up again, and noted as asked for: it is kept by that.
REMEMBERED_SECONDS = 86_400.0

Calibrations: TypeAlias = Callable[[], Awaitable[Mapping[str, SiteEfficiency]]]
Learnings: TypeAlias = Callable[[], Awaitable[LearnedStarts]]
# Told the id of the key that asked, too; None without one.
OnPlanned: TypeAlias = Callable[[StoredPlan, TimedSearch, str | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAnswer:
    """A stored plan's id, its body as it is sent, and what decides the status."""

    plan_id: str
    kind: PlanKind
    fits: bool
    verdict: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asker:
    """Who asks for a plan: the id of the key that may see it, and whose share the search is of."""

    reader: str | None
    name: str


class PlanningService:
    """Answers both kinds of planning question."""

    def __init__(
        self,
        database: PlanDatabase,
        settings: Settings,
        catalogue: Catalogue,
        models: ModelResolver,
        calibrations: Calibrations,
        *,
        learnings: Learnings = nothing_learned,
        on_planned: OnPlanned | None = None,
        storage: StorageLimits | None = None,
    ) -> None:
        """Plan on a database; `on_planned` hears of every plan that was made, and not of those found again.

        Plans are counted in `storage`; in limits of the service's own without one.
        """
        self._on_planned = on_planned
        self._database = database
        self._calibrations = calibrations
        self._learnings = learnings
        self._catalogue = catalogue
        self.models = models
        self._questions = QuestionResolver(catalogue, models)
        self._by_request = _remembered_answers()
        self._by_id = _remembered_answers()
        self._in_flight: dict[str, asyncio.Future[PlannedAnswer]] = {}
        self._storage = storage or StorageLimits(settings.key_stored_bytes_per_day)
        self._threads = PlanningThreads(
            settings.request_timeout_seconds,
            most_of_one=settings.key_planning_threads,
            most_waiting_of_one=settings.key_waiting_searches,
        )

    def check_room(self, asked_by: str) -> None:
        """Raise what planning would, for what a caller has waiting already: before its question has been read."""
        self._threads.check_room(asked_by)

    async def plan_train(
        self, request: TrainRequest, *, reader: str | None = None, asked_by: str = ""
    ) -> PlannedAnswer:
        """Return the plan of a training job; raises PlimsollErrors.

        Where no plan can be made nothing is stored, nor on Overloaded and SearchLimitReached. On DatabaseUnavailable
        the plan may have been stored: the connection may break after the commit, or what is noted after it may fail.
        Who asks again is then given that one.

        A plan that is stored by this may be seen by the key with the id `reader`, which `on_planned` hears of. The
        search is of the share of `asked_by`.
        """
        asker = _Asker(reader=reader, name=asked_by)
        return await self._planned("train", request, functools.partial(train_answer, request), asker)

    async def plan_infer(
        self, request: InferRequest, *, reader: str | None = None, asked_by: str = ""
    ) -> PlannedAnswer:
        """Return the plan of a deployment, as `plan_train` does of a job."""
        asker = _Asker(reader=reader, name=asked_by)
        return await self._planned("infer", request, functools.partial(infer_answer, request), asker)

    async def plan(self, plan_id: str) -> PlannedAnswer:
        """Return a stored plan; raises PlanNotFound."""
        remembered = self._by_id.get(plan_id)
        if remembered is not None:
            return remembered
        return self._remember(in_todays_shape(await self._database.plans.get(plan_id)))

    async def question(self, plan_id: str) -> PlanQuestion:
        """Return what a stored plan answers; raises PlanNotFound."""
        stored = await self._database.plans.get(plan_id)
        return PlanQuestion(plan_id=stored.plan_id, kind=stored.kind, request=stored.request)

    async def page(
        self, wanted: PlanFilter = ANY_PLAN, *, limit: int = 50, cursor: str | None = None
    ) -> Page[PlanSummary]:
        """Return stored plans, newest first; models and GPUs of the catalogues by any of their names."""
        by_id = replace(wanted, model=self._model_id(wanted.model), gpu=self._gpu_id(wanted.gpu))
        return await self._database.plans.page(by_id, limit=limit, cursor=cursor)

    async def _planned(
        self,
        kind: PlanKind,
        request: TrainRequest | InferRequest,
        answer: Answerer,
        asker: _Asker,
    ) -> PlannedAnswer:
        # What a folder holds, and what a hub calls by a name, may be another model the next time.
        changes = isinstance(request.model, PathModel | HubModel)
        sites = await self._calibrations()
        revisions = {gpu: site.revision for gpu, site in sites.items()}
        lessons = await self._learnings() if kind == "infer" else NOTHING_LEARNED
        key = None if changes else digest([kind, asked_parts(request), revisions, lessons.revision])
        remembered = None if key is None else self._by_request.get(key)
        if remembered is not None:
            return remembered
        resolve = functools.partial(self._questions.resolve, kind, request, sites, lessons)
        # Only a model of the catalogue needs no file, no hub and no reading of what strangers wrote.
        is_listed = isinstance(request.model, str)
        resolved = (
            resolve() if is_listed else await self._threads.run(lambda _should_stop: resolve(), asked_by=asker.name)
        )
        planned = await self._once(resolved.identity.plan_id, lambda: self._find_or_plan(resolved, answer, asker))
        if key is not None:
            self._by_request.put(key, planned)
        return planned

    async def _find_or_plan(self, resolved: ResolvedQuestion, answer: Answerer, asker: _Asker) -> PlannedAnswer:
        # One layout is planned as soon as looked up.
        if not resolved.has_one_layout:
            with suppress(PlanNotFound):
                return await self._found_again(resolved.identity.plan_id)
        # Before the search, which would be in vain.
        self._database.plans.check_backlog()
        self._storage.check(asker.name)
        stored, search = await self._threads.run(
            lambda should_stop: made_plan(resolved, answer, should_stop), asked_by=asker.name
        )
        if not await self._database.plans.put(stored, reader=asker.reader):
            # Stored before, here or by another replica, with another search time.
            return await self._found_again(stored.plan_id)
        self._storage.note(asker.name, stored_bytes(stored, resolved))
        if self._on_planned is not None:
            self._on_planned(stored, search, asker.reader)
        if not resolved.model.is_listed:
            await self._database.models_seen.remember(seen_model(resolved.model))
        return self._remember(stored)

    async def _found_again(self, plan_id: str) -> PlannedAnswer:
        """Return a stored plan that is asked for anew; raises PlanNotFound."""
        # Not from memory: a plan that was only looked at may be about to be deleted.
        stored = await self._database.plans.get(plan_id)
        asked_at = stored.last_asked_at
        if asked_at is None or (datetime.now(UTC) - asked_at).total_seconds() > REMEMBERED_SECONDS:
            await self._database.plans.note_asked(plan_id)
        return self._remember(in_todays_shape(stored))

    async def _once(self, plan_id: str, work: Callable[[], Awaitable[PlannedAnswer]]) -> PlannedAnswer:
        """Do the work for a plan once, however many ask for it at the same time."""
        under_way = self._in_flight.get(plan_id)
        if under_way is None:
            under_way = asyncio.ensure_future(work())
            self._in_flight[plan_id] = under_way
            under_way.add_done_callback(lambda _: self._in_flight.pop(plan_id))
            under_way.add_done_callback(_retrieve_error)
        return await asyncio.shield(under_way)

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


def _remembered_answers() -> RecentlyUsed[str, PlannedAnswer]:
    return RecentlyUsed(
        MOST_REMEMBERED_PLANS,
        seconds=REMEMBERED_SECONDS,
        most_bytes=MOST_REMEMBERED_BYTES,
        size_bytes=lambda answer: len(answer.body),
    )


def _retrieve_error(done: asyncio.Future[Any]) -> None:
    """Take note of the error, which asyncio would otherwise report as lost once nobody waits any more."""
    if not done.cancelled():
        done.exception()
