"""Keys are made at random, kept as hashes, recognised, and told to nobody."""

from __future__ import annotations

import asyncio
import hashlib
import json
import traceback
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.service.access.keys import (
    ANONYMOUS,
    CREATED_WITHIN_SECONDS,
    REVOKED_WITHIN_SECONDS,
    TRUSTED_FOR_SECONDS,
    Caller,
    KeyRing,
    make_key,
)
from plimsoll.service.ground.database_address import libpq_url
from plimsoll.service.ground.errors import DatabaseUnavailable, KeyNotFound, ScopeMissing, Unauthenticated
from plimsoll.service.persistence.records import KeysOnRecord

# The database's time; nobody here looks at another clock.
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Keys:
    """A store in memory that can be away."""

    def __init__(self, *keys):
        self.keys = keys
        self.told_at = NOON
        self.is_away = False
        self.asked = 0

    async def all(self):
        self.asked += 1
        if self.is_away:
            raise DatabaseUnavailable("away")
        return KeysOnRecord(keys=self.keys, told_at=self.told_at)


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def a_ring(*keys):
    store, clock = Keys(*keys), Clock()
    return KeyRing(store, clock=clock), store, clock


def test_a_key_is_256_random_bits_of_which_a_hash_is_kept():
    new = make_key("ci", ["plan"], lifetime=None)
    # 43 characters of 6 bits hold 32 bytes.
    assert len(new.key.split("_", 2)[2]) == 43
    assert new.record.key_hash == hashlib.sha256(new.key.encode()).hexdigest()
    assert new.key != make_key("ci", ["plan"], lifetime=None).key


def test_neither_key_nor_hash_is_in_any_repr():
    new = make_key("ci", ["plan"], lifetime=None)
    for shown in (repr(new), str(new), repr(new.record), f"{new}"):
        assert new.key not in shown
        assert new.record.key_hash not in shown


@pytest.mark.parametrize(("scopes", "lifetime"), [([], None), (["plan"], timedelta(0)), (["plan"], timedelta(-1))])
def test_a_key_for_nothing_is_not_made(scopes, lifetime):
    with pytest.raises(InvalidQuestion):
        make_key("ci", scopes, lifetime=lifetime)


async def test_a_key_is_recognised_with_its_scopes():
    new = make_key("ci", ["validate", "plan"], lifetime=timedelta(days=1))
    ring, _, _ = a_ring(new.record)
    assert await ring.caller(new.key) == Caller(key_id=new.record.key_id, scopes=frozenset({"plan", "validate"}))


@pytest.mark.parametrize(
    "change",
    [
        {"revoked_at": NOON},
        {"expires_at": NOON},
        {"key_hash": "0" * 64},
    ],
)
async def test_a_key_that_is_not_in_force_is_none(change):
    new = make_key("ci", ["plan"], lifetime=None)
    ring, _, _ = a_ring(replace(new.record, **change))
    with pytest.raises(Unauthenticated):
        await ring.caller(new.key)


async def test_a_key_expires_by_the_databases_clock_and_by_no_other():
    new = make_key("ci", ["plan"], lifetime=timedelta(seconds=4))
    ring, store, clock = a_ring(replace(new.record, expires_at=NOON + timedelta(seconds=4)))
    await ring.caller(new.key)
    clock.now += 3.9
    assert await ring.caller(new.key)
    clock.now += 0.1
    with pytest.raises(Unauthenticated):
        await ring.caller(new.key)
    # The database's clock is put back by an hour: the key lives on by as much once that is heard of.
    store.told_at = NOON - timedelta(hours=1)
    clock.now += REVOKED_WITHIN_SECONDS
    assert await ring.caller(new.key)


async def test_a_keys_lifetime_begins_by_the_databases_clock(database):
    new = make_key("ci", ["plan"], lifetime=timedelta(days=1))
    stored = await database.keys.add(new.record, lifetime=new.lifetime)
    assert stored.expires_at - stored.created_at == timedelta(days=1)
    assert (await database.keys.all()).told_at - stored.created_at < timedelta(hours=1)


async def test_a_key_with_one_character_changed_is_none_and_no_error_tells_it():
    new = make_key("ci", ["plan"], lifetime=None)
    wrong = new.key[:-1] + ("A" if new.key[-1] != "A" else "B")
    ring, _, _ = a_ring(new.record)
    with pytest.raises(Unauthenticated) as refused:
        await ring.caller(wrong)
    told = "".join(traceback.format_exception(refused.value)) + refused.value.detail
    assert wrong not in told
    assert new.record.key_hash not in told


async def test_keys_are_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr(
        "plimsoll.service.access.keys.hmac.compare_digest", lambda a, b: compared.append((a, b)) or a == b
    )
    new = make_key("ci", ["plan"], lifetime=None)
    ring, _, _ = a_ring()
    with pytest.raises(Unauthenticated):
        await ring.caller(new.key)
    assert len(compared) == 1


async def test_a_revoked_key_is_refused_within_seconds_and_a_new_one_known_sooner():
    old, new = make_key("old", ["plan"], lifetime=None), make_key("new", ["plan"], lifetime=None)
    ring, store, clock = a_ring(old.record)
    await ring.caller(old.key)
    store.keys = (replace(old.record, revoked_at=NOON),)
    clock.now += REVOKED_WITHIN_SECONDS
    await ring.caller(old.key)
    clock.now += 0.001
    with pytest.raises(Unauthenticated):
        await ring.caller(old.key)
    store.keys = (new.record,)
    clock.now += CREATED_WITHIN_SECONDS + 0.001
    assert (await ring.caller(new.key)).key_id == new.record.key_id


async def test_strangers_keys_do_not_reach_the_database_each():
    ring, store, _ = a_ring()
    for _ in range(20):
        with pytest.raises(Unauthenticated):
            await ring.caller(make_key("stranger", ["plan"], lifetime=None).key)
    assert store.asked == 1


async def test_while_the_database_is_away_known_keys_are_believed_for_minutes():
    new = make_key("ci", ["plan"], lifetime=None)
    ring, store, clock = a_ring(new.record)
    await ring.caller(new.key)
    store.is_away = True
    clock.now += TRUSTED_FOR_SECONDS
    assert await ring.caller(new.key)
    clock.now += 1
    with pytest.raises(DatabaseUnavailable):
        await ring.caller(new.key)


async def test_without_ever_having_seen_the_database_nobody_is_let_in():
    ring, store, _ = a_ring()
    store.is_away = True
    with pytest.raises(DatabaseUnavailable):
        await ring.caller(make_key("ci", ["plan"], lifetime=None).key)


def test_an_administrator_may_do_everything_and_sees_everything():
    admin = Caller(key_id="a", scopes=frozenset({"admin"}))
    admin.check("quantize")
    assert admin.sees_only is None
    assert ANONYMOUS.sees_only is None
    other = Caller(key_id="b", scopes=frozenset({"plan"}))
    assert other.sees_only == "b"
    with pytest.raises(ScopeMissing, match="'admin'"):
        other.check("admin")


async def test_the_database_holds_no_key(database, database_url):
    new = make_key("ci", ["plan", "admin"], lifetime=timedelta(days=1))
    stored = await database.keys.add(new.record, lifetime=new.lifetime)
    assert replace(stored, created_at=None, expires_at=None) == new.record
    with psycopg.connect(libpq_url(database_url)) as connection:
        rows = json.dumps(connection.execute("SELECT to_jsonb(api_keys) FROM api_keys").fetchall())
    assert new.key not in rows
    assert new.key.split("_", 2)[2] not in rows


async def test_a_key_is_revoked_once_and_stays_on_record(database):
    new = make_key("ci", ["plan"], lifetime=None)
    await database.keys.add(new.record)
    first = await database.keys.revoke(new.record.key_id)
    assert first.revoked_at is not None
    assert await database.keys.revoke(new.record.key_id) == first
    assert (await database.keys.all()).keys == (first,)
    with pytest.raises(KeyNotFound, match="plimsoll keys list"):
        await database.keys.revoke("nobody")


async def test_keys_are_looked_up_once_however_many_show_theirs_at_once():
    new = make_key("laptop", ["plan"], lifetime=None)
    ring, store, _ = a_ring(new.record)
    await asyncio.gather(*(ring.caller(new.key) for _ in range(100)))
    assert store.asked == 1
