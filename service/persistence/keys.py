"""API keys by their hashes, and which plans each may see."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from plimsoll.service.ground.errors import KeyNotFound
from plimsoll.service.persistence.persistent_connection import PersistentConnection
from plimsoll.service.persistence.records import ApiKey, KeysOnRecord
from plimsoll.service.persistence.tables import api_keys, plan_readers
from plimsoll.service.persistence.transactions import Transactions

# Asked with every plan.
_LET_READ = "INSERT INTO plan_readers (key_id, plan_id) VALUES (%s, %s) ON CONFLICT DO NOTHING RETURNING plan_id"
_MAY_READ = "SELECT plan_id FROM plan_readers WHERE key_id = %s AND plan_id = %s"


class KeyStore:
    """Every key that was ever made: one that is revoked stays on record."""

    def __init__(
        self, transactions: Transactions, *, reading: PersistentConnection, writing: PersistentConnection
    ) -> None:
        self._transactions = transactions
        self._reading = reading
        self._writing = writing

    async def add(self, key: ApiKey, *, lifetime: timedelta | None = None) -> ApiKey:
        """Store a new key, which expires after `lifetime` by the database's clock, and return it with its times."""
        values = {
            "key_id": key.key_id,
            "name": key.name,
            "key_hash": key.key_hash,
            "scopes": list(key.scopes),
            "expires_at": None if lifetime is None else sa.func.now() + lifetime,
        }
        add = sa.insert(api_keys).values(**values).returning(*api_keys.c)
        async with self._transactions.write() as connection:
            return _key((await connection.execute(add)).one())

    async def all(self) -> KeysOnRecord:
        """Return every key, and the database's time."""
        query = sa.select(api_keys).order_by(api_keys.c.created_at.desc(), api_keys.c.key_id)
        async with self._transactions.read() as connection:
            told_at = (await connection.execute(sa.select(sa.func.now()))).scalar_one()
            keys = tuple(_key(row) for row in (await connection.execute(query)).all())
        return KeysOnRecord(keys=keys, told_at=told_at)

    async def revoke(self, key_id: str) -> ApiKey:
        """Revoke a key and return it; one that is revoked keeps its time. Raises KeyNotFound."""
        now = sa.func.coalesce(api_keys.c.revoked_at, sa.func.now())
        revoke = sa.update(api_keys).where(api_keys.c.key_id == key_id).values(revoked_at=now).returning(*api_keys.c)
        async with self._transactions.write() as connection:
            row = (await connection.execute(revoke)).one_or_none()
        if row is None:
            raise KeyNotFound(key_id)
        return _key(row)

    async def let_read(self, key_id: str, plan_id: str) -> None:
        """Let a key see a plan from now on."""
        await self._writing.rows(_LET_READ, (key_id, plan_id))

    async def may_read(self, key_id: str, plan_id: str) -> bool:
        """Return whether a key asked for a plan."""
        return bool(await self._reading.rows(_MAY_READ, (key_id, plan_id)))


def readable_by(key_id: str) -> sa.Select[Any]:
    """Return the query for the ids of all plans that a key may see."""
    return sa.select(plan_readers.c.plan_id).where(plan_readers.c.key_id == key_id)


def _key(row: sa.Row[Any]) -> ApiKey:
    return ApiKey(**{**row._mapping, "scopes": tuple(row.scopes)})
