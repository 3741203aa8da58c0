"""Who may see which plan: those who asked for it, and administrators.

A plan's content is the same whoever asks, and stored once; who asked is a row beside it.
"""

from __future__ import annotations

from plimsoll.service.access.keys import Caller
from plimsoll.service.ground.errors import PlanNotFound
from plimsoll.service.ground.recently_used import RecentlyUsed
from plimsoll.service.persistence.keys import KeyStore

MOST_REMEMBERED = 10_000


class PlanReaders:
    """Notes who asked for a plan, and refuses plans to others as if they were not there."""

    def __init__(self, store: KeyStore, *, remembered_seconds: float) -> None:
        self._store = store
        self._known: RecentlyUsed[tuple[str, str], bool] = RecentlyUsed(MOST_REMEMBERED, seconds=remembered_seconds)

    async def note(self, caller: Caller, plan_id: str) -> None:
        """Let a caller see the plan that was just answered."""
        if caller.key_id is None or self._known.get((caller.key_id, plan_id)):
            return
        await self._store.let_read(caller.key_id, plan_id)
        self.remember(caller.key_id, plan_id)

    def remember(self, key_id: str, plan_id: str) -> None:
        """Remember that a key may see a plan, as the database was told with the plan itself."""
        self._known.put((key_id, plan_id), True)

    async def check(self, caller: Caller, plan_id: str) -> None:
        """Raise PlanNotFound for a plan that a caller may not see."""
        if caller.sees_only is None or self._known.get((caller.sees_only, plan_id)):
            return
        if not await self._store.may_read(caller.sees_only, plan_id):
            raise PlanNotFound(plan_id)
        self.remember(caller.sees_only, plan_id)
