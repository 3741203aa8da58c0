"""`plimsoll keys`: make, list and revoke the keys that the API asks for."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.service.access.keys import make_key
from plimsoll.service.ground.settings import Settings
from plimsoll.service.persistence.database import Database
from plimsoll.service.persistence.records import KEY_SCOPES, ApiKey, KeyScope
from plimsoll.service.running.postgres.embedded import running_server_url
from plimsoll.service.text.tables import table

Answer = TypeVar("Answer")


def create_key(name: str, scopes: Sequence[str], days: int | None) -> int:
    """Make a key and print it, which is the only time that it is shown; return the exit status."""
    known: list[KeyScope] = [scope for scope in KEY_SCOPES if scope in scopes]
    if unknown := sorted(set(scopes) - set(KEY_SCOPES)):
        sys.stderr.write(f"No scope is called {', '.join(unknown)}; there are {', '.join(KEY_SCOPES)}.\n")
        return 2

    async def create(database: Database) -> int:
        new = make_key(name, known, lifetime=None if days is None else timedelta(days=days))
        record = await database.keys.add(new.record, lifetime=new.lifetime)
        sys.stderr.write(f"Key {record.key_id} ({name}) for {', '.join(record.scopes)}, {_expiry(record)}.\n")
        sys.stderr.write("It is shown this once, and kept nowhere but with you:\n")
        sys.stdout.write(f"{new.key}\n")
        return 0

    return _with_database(create)


def list_keys() -> int:
    """Print every key on record, without the keys themselves; return the exit status."""

    async def show(database: Database) -> int:
        on_record = await database.keys.all()
        rows = [
            (key.key_id, key.name, ",".join(key.scopes), _day(key.created_at), _state(key, on_record.told_at))
            for key in on_record.keys
        ]
        sys.stdout.write(table(("id", "name", "scopes", "created", ""), rows) + "\n")
        return 0

    return _with_database(show)


def revoke_key(key_id: str) -> int:
    """Revoke a key; return the exit status."""

    async def revoke(database: Database) -> int:
        key = await database.keys.revoke(key_id)
        sys.stdout.write(f"Key {key.key_id} ({key.name}) is revoked; every process refuses it within seconds.\n")
        return 0

    return _with_database(revoke)


def _with_database(work: Callable[[Database], Awaitable[int]]) -> int:
    settings = Settings()

    async def run() -> int:
        url = settings.database_url or running_server_url(settings.data_dir / "postgres")
        async with Database(url, pool_size=1) as database:
            return await work(database)

    try:
        return asyncio.run(run())
    except PlimsollError as error:
        sys.stderr.write(f"{error.detail}\n")
        return 1


def _expiry(key: ApiKey) -> str:
    return "which never expires" if key.expires_at is None else f"which expires on {_day(key.expires_at)}"


def _state(key: ApiKey, now: datetime) -> str:
    if key.revoked_at is not None:
        return f"revoked on {_day(key.revoked_at)}"
    if key.expires_at is None:
        return "in force"
    return f"{'expired' if key.expires_at <= now else 'expires'} on {_day(key.expires_at)}"


def _day(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone(UTC).date().isoformat()
