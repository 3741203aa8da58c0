"""Model configs (`config.json`) that clients sent, by the hash of their contents."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from plimsoll.service.persistence.grouped_writes import GroupedWrites
from plimsoll.service.persistence.paging import newest_first, page_of
from plimsoll.service.persistence.records import Page, SeenModel
from plimsoll.service.persistence.tables import models_seen
from plimsoll.service.persistence.transactions import Transactions


class ModelsSeenStore:
    """Stores each config once, and finds it again by its hash."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._writes: GroupedWrites[SeenModel, None] = GroupedWrites(self._insert)

    async def remember(self, model: SeenModel) -> None:
        """Store a model unless its config is stored already; committed on return.

        Raises DatabaseUnavailable, Overloaded and Unstorable.
        """
        await self._writes.put(model)

    async def find(self, config_hash: str) -> SeenModel | None:
        """Return the model whose config has this hash, or None."""
        query = sa.select(models_seen).where(models_seen.c.config_hash == config_hash)
        async with self._transactions.read() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else SeenModel(**row._mapping)

    async def page(self, *, limit: int = 50, cursor: str | None = None) -> Page[SeenModel]:
        """Return the models, the latest first; raises InvalidCursor."""
        seen_at, config_hash = models_seen.c.first_seen_at, models_seen.c.config_hash
        query = newest_first(sa.select(models_seen), seen_at, config_hash, limit=limit, cursor=cursor)
        async with self._transactions.read() as connection:
            rows = (await connection.execute(query)).all()
        return page_of(rows, seen_at, config_hash, lambda row: SeenModel(**row._mapping), limit=limit)

    async def close(self) -> None:
        """Wait until everything is stored that `remember` was given."""
        await self._writes.close()

    async def _insert(self, group: Sequence[SeenModel]) -> Sequence[None]:
        # In one order everywhere: replicas that store the same models cannot wait for each other in a circle.
        rows = [
            {
                "config_hash": model.config_hash,
                "name": model.name,
                "model_type": model.model_type,
                "config": model.config,
            }
            for model in sorted(group, key=lambda model: model.config_hash)
        ]
        async with self._transactions.write() as connection:
            await connection.execute(insert(models_seen).on_conflict_do_nothing(), rows)
        return [None] * len(group)
