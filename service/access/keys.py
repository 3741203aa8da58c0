"""API keys: made, recognised, and what the one who shows it may do.

A key is `plimsoll_<id>_<secret>` with 256 bits drawn at random. Only its SHA-256 is
kept: a slow, salted hash is for secrets that people choose, which can be guessed;
this one has no dictionary, and each request must be able to afford the check.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.service.ground.errors import DatabaseUnavailable, ScopeMissing, Unauthenticated
from plimsoll.service.persistence.keys import KeyStore
from plimsoll.service.persistence.records import KEY_SCOPES, ApiKey, KeyScope

REVOKED_WITHIN_SECONDS = 5.0
"""How soon a revoked key is refused by every process."""
CREATED_WITHIN_SECONDS = 0.5
"""How soon a new key is known; strangers cannot make us ask the database more often than that."""
TRUSTED_FOR_SECONDS = 300.0
"""How long keys are believed that can no longer be looked up, because the database is away."""

_SECRET_BYTES = 32
_KEY = re.compile(r"plimsoll_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")
_NO_HASH = hashlib.sha256(b"").hexdigest()

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks, and what they may do."""

    key_id: str | None
    """None for those who are answered without a key."""
    scopes: frozenset[KeyScope]
    address: str = ""
    """Where a request without a key comes from, as `service.access.rate_limits.caller_at` names it."""

    @property
    def name(self) -> str:
        """Return what the caller's shares are counted under."""
        return f"address {self.address}" if self.key_id is None else f"key {self.key_id}"

    @property
    def sees_only(self) -> str | None:
        """Return the id of the key whose plans and jobs are all that is shown; None for everything."""
        return None if self.key_id is None or "admin" in self.scopes else self.key_id

    def may(self, scope: KeyScope) -> bool:
        """Return whether the caller has a scope; `admin` has them all."""
        return scope in self.scopes or "admin" in self.scopes

    def check(self, scope: KeyScope) -> None:
        """Raise ScopeMissing for a scope that the caller does not have."""
        if not self.may(scope):
            raise ScopeMissing(scope)


ANONYMOUS = Caller(key_id=None, scopes=frozenset(KEY_SCOPES))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key's record, and the key itself, which is shown once."""

    record: ApiKey
    lifetime: timedelta | None
    """By the clock of where it is stored; None: for ever."""
    key: str

    def __repr__(self) -> str:
        """Leave the key out."""
        return f"NewKey(record={self.record!r}, lifetime={self.lifetime!r})"


def make_key(name: str, scopes: Sequence[KeyScope], *, lifetime: timedelta | None) -> NewKey:
    """Draw a new key; raises InvalidQuestion without a scope, or for a lifetime that is over already."""
    if not scopes:
        raise InvalidQuestion(f"A key needs a scope: {', '.join(KEY_SCOPES)}.")
    if lifetime is not None and lifetime <= timedelta(0):
        raise InvalidQuestion("A key that has expired before it is made opens nothing.")
    key_id = secrets.token_hex(8)
    key = f"plimsoll_{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    record = ApiKey(
        key_id=key_id,
        name=name,
        scopes=tuple(scope for scope in KEY_SCOPES if scope in scopes),
        key_hash=key_hash(key),
    )
    return NewKey(record=record, lifetime=lifetime, key=key)


def key_hash(key: str) -> str:
    """Return what is kept of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


class KeyRing:
    """All keys as they were a moment ago, so that no request waits for the database to be let in.

    They expire by the database's clock: its time when they were read, and what passed since by a
    clock that nobody sets.
    """

    def __init__(self, store: KeyStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._keys: Mapping[str, ApiKey] = {}
        self._told_at = datetime.min.replace(tzinfo=UTC)
        self._loaded_at = float("-inf")
        self._tried_at = float("-inf")
        self._loading: asyncio.Task[None] | None = None

    async def caller(self, key: str) -> Caller:
        """Return who shows this key; raises Unauthenticated, and DatabaseUnavailable where no key can be looked up."""
        match = _KEY.fullmatch(key)
        if match is None:
            raise Unauthenticated
        await self._load(REVOKED_WITHIN_SECONDS)
        if match[1] not in self._keys:
            await self._load(CREATED_WITHIN_SECONDS)
        record = self._keys.get(match[1])
        # Compared even where there is none, and in constant time.
        is_right = hmac.compare_digest(key_hash(key), _NO_HASH if record is None else record.key_hash)
        if record is None or not is_right or not self._is_in_force(record):
            raise Unauthenticated
        return Caller(key_id=record.key_id, scopes=frozenset(record.scopes))

    async def _load(self, most_seconds: float) -> None:
        """Have keys that are no older than that; while the database is away, than TRUSTED_FOR_SECONDS."""
        # What is under way may have begun too long ago; what is begun then has not.
        for _ in range(2):
            if self._clock() - self._loaded_at <= most_seconds:
                return
            if self._loading is None:
                self._loading = asyncio.create_task(self._look_up(), name="keys looked up")
                self._loading.add_done_callback(self._end_loading)
            # All who wait go on in one turn of the loop. Through a lock they would one after the other, a turn each.
            await asyncio.shield(self._loading)

    def _end_loading(self, done: asyncio.Task[None]) -> None:
        self._loading = None
        # Taken note of: asyncio would report it as lost where nobody waits any more.
        if not done.cancelled():
            done.exception()

    async def _look_up(self) -> None:
        now = self._clock()
        is_trusted = now - self._loaded_at <= TRUSTED_FOR_SECONDS
        if is_trusted and now - self._tried_at <= CREATED_WITHIN_SECONDS:
            return
        self._tried_at = now
        try:
            on_record = await self._store.all()
        except DatabaseUnavailable as error:
            if not is_trusted:
                raise
            log.warning("database unavailable", doing="looking keys up", error=error.detail)
        else:
            self._keys = {key.key_id: key for key in on_record.keys}
            self._told_at = on_record.told_at
            self._loaded_at = now

    def _is_in_force(self, key: ApiKey) -> bool:
        now = self._told_at + timedelta(seconds=self._clock() - self._loaded_at)
        return key.revoked_at is None and (key.expires_at is None or now < key.expires_at)
