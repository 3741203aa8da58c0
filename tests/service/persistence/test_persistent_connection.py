"""One kept connection: each statement committed as it is answered, and asked again where the connection was lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from plimsoll.service.ground.database_address import libpq_url
from plimsoll.service.ground.errors import DatabaseUnavailable, Unstorable
from plimsoll.service.persistence.persistent_connection import PersistentConnection

COUNT = "SELECT count(*) FROM models_seen WHERE name = %s"
ADD = "INSERT INTO models_seen (config_hash, name, model_type, config) VALUES (%s, %s, %s, %s) RETURNING name"
PROCESS = "SELECT pg_backend_pid() + %s"


@pytest.fixture
async def kept(database_url: str) -> AsyncIterator[PersistentConnection]:
    connection = PersistentConnection(libpq_url(database_url))
    yield connection
    await connection.close()


def terminate(url: str, process_id: int) -> None:
    with psycopg.connect(libpq_url(url), autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s, 5000)", (process_id,))


async def test_what_was_answered_is_committed(kept: PersistentConnection, database_url: str):
    assert await kept.rows(ADD, ("1", "a", "llama", "{}")) == [("a",)]
    with psycopg.connect(libpq_url(database_url)) as other:
        assert other.execute(COUNT, ("a",)).fetchone() == (1,)


async def test_one_connection_serves_all_who_ask_at_once(kept: PersistentConnection):
    answers = await asyncio.gather(*(kept.rows(PROCESS, (0,)) for _ in range(20)))
    assert len({process_id for ((process_id,),) in answers}) == 1


async def test_what_was_asked_on_a_lost_connection_is_asked_on_a_new_one(kept: PersistentConnection, database_url: str):
    ((first,),) = await kept.rows(PROCESS, (0,))
    terminate(database_url, first)
    answers = await asyncio.gather(*(kept.rows(PROCESS, (0,)) for _ in range(5)))
    assert {process_id for ((process_id,),) in answers}.isdisjoint({first})
    assert len({process_id for ((process_id,),) in answers}) == 1


async def test_an_error_of_the_statement_leaves_the_connection(kept: PersistentConnection):
    before = await kept.rows(PROCESS, (0,))
    with pytest.raises(Unstorable):
        await kept.rows(ADD, ("1", "a", "llama", "no JSON"))
    with pytest.raises(DatabaseUnavailable, match="canceling"):
        await kept.rows("SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(%s)", (1,))
    assert await kept.rows(PROCESS, (0,)) == before


@pytest.mark.parametrize("text", ["\x00", "\ud800"])
async def test_a_text_that_is_none_is_not_storable(kept: PersistentConnection, text: str):
    with pytest.raises(Unstorable):
        await kept.rows(COUNT, (text,))


async def test_a_mistake_of_ours_is_not_taken_for_the_databases_trouble(kept: PersistentConnection):
    with pytest.raises(psycopg.errors.SyntaxError):
        await kept.rows("SELEC %s", (1,))


async def test_a_missing_table_says_what_to_do(kept: PersistentConnection):
    with pytest.raises(DatabaseUnavailable, match="db upgrade"):
        await kept.rows("SELECT %s FROM gone", (1,))


async def test_a_database_that_is_away_is_said_to_be(tmp_path: Path):
    with pytest.raises(DatabaseUnavailable, match="does not answer"):
        await PersistentConnection(f"postgresql://nobody@/nothing?host={tmp_path}").rows(PROCESS, (0,))


async def test_closing_what_was_never_opened_does_nothing(tmp_path: Path):
    await PersistentConnection(f"postgresql://nobody@/nothing?host={tmp_path}").close()


async def test_once_closed_it_opens_no_other_connection(kept: PersistentConnection):
    asked = asyncio.create_task(kept.rows(PROCESS, (0,)))
    await asyncio.sleep(0)
    await kept.close()
    assert asked.done()
    await asked
    with pytest.raises(DatabaseUnavailable, match="stopped"):
        await kept.rows(PROCESS, (0,))
