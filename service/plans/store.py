"""Where planning keeps its plans: what it asks of a store, and the store of a process that has no database."""

from __future__ import annotations

from dataclasses import asdict
from typing import Protocol

from plimsoll.service.ground.errors import InvalidCursor, PlanNotFound
from plimsoll.service.persistence.records import ANY_PLAN, Page, PlanFilter, PlanSummary, SeenModel, StoredPlan


class PlanStore(Protocol):
    """Plans by their ids."""

    async def put(self, plan: StoredPlan, *, reader: str | None = None) -> bool:
        """Store a plan unless its id is stored already; return whether it was not.

        `reader` is the id of a key that may see it from now on.
        """

    def check_backlog(self) -> None:
        """Raise Overloaded while a further plan would be refused."""

    async def get(self, plan_id: str) -> StoredPlan:
        """Return a plan; raises PlanNotFound."""

    async def note_asked(self, plan_id: str) -> None:
        """Note that a plan was asked for now."""

    async def page(
        self, wanted: PlanFilter = ANY_PLAN, *, limit: int = 50, cursor: str | None = None
    ) -> Page[PlanSummary]:
        """Return plans, newest first; raises InvalidCursor."""


class SeenModels(Protocol):
    """Models that someone asked about and no catalogue lists."""

    async def remember(self, model: SeenModel) -> None:
        """Note a model."""


class PlanDatabase(Protocol):
    """The stores that planning needs."""

    @property
    def plans(self) -> PlanStore:
        """Return the plans."""

    @property
    def models_seen(self) -> SeenModels:
        """Return the models that were seen."""


class PlansInMemory:
    """The plans of one process, gone with it."""

    def __init__(self) -> None:
        self._plans: dict[str, StoredPlan] = {}

    async def put(self, plan: StoredPlan, *, reader: str | None = None) -> bool:
        """Store a plan unless its id is stored already; return whether it was not. Anyone here may see it."""
        del reader
        return self._plans.setdefault(plan.plan_id, plan) is plan

    def check_backlog(self) -> None:
        """Do nothing: nothing waits here."""

    async def get(self, plan_id: str) -> StoredPlan:
        """Return a plan; raises PlanNotFound."""
        if plan_id not in self._plans:
            raise PlanNotFound(plan_id)
        return self._plans[plan_id]

    async def note_asked(self, plan_id: str) -> None:
        """Do nothing: no plan here outlives the process, so none is ever deleted."""

    async def page(
        self, wanted: PlanFilter = ANY_PLAN, *, limit: int = 50, cursor: str | None = None
    ) -> Page[PlanSummary]:
        """Return the newest plans of those that are wanted; raises InvalidCursor, since none is given out.

        The reader hides nothing: who runs the process sees all of it.
        """
        if cursor is not None:
            raise InvalidCursor
        asked = {name: value for name, value in asdict(wanted).items() if value is not None and name != "reader"}
        found = [
            plan
            for plan in reversed(self._plans.values())
            if all(getattr(plan, name) == value for name, value in asked.items())
        ]
        return Page(items=tuple(found[:limit]), next_cursor=None)


class NoModelsSeen:
    """Remembers no model."""

    async def remember(self, model: SeenModel) -> None:
        """Do nothing: the record serves those who run a service."""


class DatabaseInMemory:
    """The stores of a process that plans without a database."""

    def __init__(self) -> None:
        self.plans = PlansInMemory()
        self.models_seen = NoModelsSeen()
