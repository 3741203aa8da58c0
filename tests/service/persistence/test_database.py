from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from plimsoll.service.ground.database_address import libpq_url
from plimsoll.service.ground.errors import DatabaseUnavailable, Unstorable
from plimsoll.service.persistence.database import Database
from plimsoll.service.persistence.last_write import TRIED_AGAIN_SECONDS, TRUSTED_SECONDS, LastWrite
from plimsoll.service.persistence.steps import latest_step
from tests.service.persistence.factories import a_plan


async def test_a_database_that_answers_opens(database_url):
    async with Database(database_url) as database:
        await database.ping()


async def test_a_database_that_is_away_is_said_to_be(tmp_path):
    database = Database(f"postgresql://nobody@/nothing?host={tmp_path}")
    with pytest.raises(DatabaseUnavailable, match="does not answer"):
        await database.open()
    await database.close()


@pytest.mark.parametrize("ask", [lambda database: database.plans.page(), lambda database: database.keys.all()])
async def test_what_is_read_while_it_closes_is_answered_and_leaves_no_connection(database_url, ask):
    # A pool's connection and the kept one: as a value that is read anew in the background when the service stops.
    database = Database(database_url)
    reading = asyncio.create_task(ask(database))
    await asyncio.sleep(0)
    await database.close()
    assert reading.done()
    await reading
    with pytest.raises(DatabaseUnavailable, match="stopped"):
        await ask(database)
    with psycopg.connect(libpq_url(database_url), autocommit=True) as connection:
        others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        assert await eventually(lambda: connection.execute(others).fetchone() == (0,))


async def eventually(condition) -> bool:
    """Return whether it holds within the time that a server takes to end a process."""
    for _ in range(500):
        if condition():
            return True
        await asyncio.sleep(0.02)
    return False


async def test_a_database_without_tables_says_what_to_do(empty_database_url):
    async with Database(empty_database_url) as database:
        with pytest.raises(DatabaseUnavailable, match="db upgrade"):
            await database.plans.page()


async def test_a_database_with_every_table_is_ready(database):
    await database.check_ready()


@pytest.mark.parametrize("table", ["plans", "jobs", "procrastinate_jobs"])
async def test_a_database_that_lacks_a_table_is_not_ready(database, database_url, table):
    with psycopg.connect(libpq_url(database_url), autocommit=True) as connection:
        connection.execute(f"ALTER TABLE {table} RENAME TO away")
        with pytest.raises(DatabaseUnavailable, match="db upgrade"):
            await database.check_ready()
        connection.execute(f"ALTER TABLE away RENAME TO {table}")
    await database.check_ready()


@contextmanager
def at_step(database_url: str, step: str) -> Iterator[None]:
    """Let a database say that it is at a step."""
    change = "UPDATE alembic_version SET version_num = %s"
    with psycopg.connect(libpq_url(database_url), autocommit=True) as connection:
        connection.execute(change, [step])
        yield
        connection.execute(change, [latest_step()])


async def test_a_database_of_an_earlier_version_is_not_ready(database, database_url):
    message = f"step 0004 and this version needs {latest_step()}: run"
    with at_step(database_url, "0004"), pytest.raises(DatabaseUnavailable, match=message):
        await database.check_ready()
    await database.check_ready()


async def test_a_database_of_a_later_version_is_ready(database, database_url):
    with at_step(database_url, "9999"):
        await database.check_ready()


async def test_a_database_that_takes_no_writes_is_not_ready(database_url):
    with psycopg.connect(libpq_url(database_url), autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        async with Database(database_url) as database:
            with pytest.raises(DatabaseUnavailable, match="takes no writes"):
                await database.check_ready()
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    async with Database(database_url) as database:
        await database.check_ready()


async def test_connections_that_the_server_closed_are_replaced(database, database_url):
    await database.plans.put(a_plan())
    with psycopg.connect(libpq_url(database_url), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    assert (await database.plans.get("plan-1")).plan_id == "plan-1"


async def test_more_requests_than_connections_take_turns(database_url):
    async with Database(database_url, pool_size=1) as database:
        await asyncio.gather(*(database.ping() for _ in range(20)))


@pytest.mark.parametrize("changes", [{"gpus": 2**31}, {"model": "\x00"}, {"model": "\ud800"}, {"answer": "NaN"}])
async def test_what_no_column_holds_is_refused(database, changes):
    with pytest.raises(Unstorable):
        await database.plans.put(a_plan(**changes))


async def test_the_largest_number_that_a_column_holds_is_stored(database):
    await database.plans.put(a_plan(gpus=2**31 - 1))
    assert (await database.plans.get("plan-1")).gpus == 2**31 - 1


def test_another_kind_of_database_is_refused():
    with pytest.raises(ValueError, match="PostgreSQL"):
        Database("sqlite://")


@contextmanager
def full_disk(database_url: str) -> Iterator[None]:
    """Have every new plan fail as on a full disk, which answers reads as ever."""
    refuse = """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = 'disk_full'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON plans EXECUTE FUNCTION refuse()
    """
    with psycopg.connect(libpq_url(database_url), autocommit=True) as connection:
        connection.execute(refuse)
        yield
        connection.execute("DROP TRIGGER refuse ON plans; DROP FUNCTION refuse()")


async def test_a_database_whose_disk_is_full_is_not_ready_until_a_write_succeeds(database_url):
    now = [0.0]
    async with Database(database_url, last_write=LastWrite(clock=lambda: now[0])) as database:
        with full_disk(database_url):
            with pytest.raises(DatabaseUnavailable, match="No space left"):
                await database.plans.put(a_plan())
            with pytest.raises(DatabaseUnavailable, match=r"The latest write failed.*No space left"):
                await database.check_ready()
        # Another write, of the store itself.
        await database.plans.put(a_plan())
        await database.check_ready()


async def test_readiness_itself_finds_out_that_writes_succeed_again(database_url):
    now = [0.0]
    last_write = LastWrite(clock=lambda: now[0])
    async with Database(database_url, last_write=last_write) as database:
        last_write.failed(DatabaseUnavailable("The disk was full."))
        now[0] = TRIED_AGAIN_SECONDS - 0.1
        with pytest.raises(DatabaseUnavailable, match="The disk was full"):
            await database.check_ready()
        now[0] = TRIED_AGAIN_SECONDS
        await database.check_ready()
        assert last_write.failure is None


@contextmanager
def no_room_for_tables(database_url: str) -> Iterator[None]:
    """Have every new table fail as on a full disk, before anybody stored anything."""
    refuse = """
        CREATE FUNCTION no_room() RETURNS event_trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = 'disk_full'; END $$;
        CREATE EVENT TRIGGER no_room ON ddl_command_start WHEN TAG IN ('CREATE TABLE AS') EXECUTE FUNCTION no_room()
    """
    with psycopg.connect(libpq_url(database_url), autocommit=True) as connection:
        connection.execute(refuse)
        yield
        connection.execute("DROP EVENT TRIGGER no_room; DROP FUNCTION no_room()")


async def test_readiness_finds_out_by_itself_that_the_disk_is_full(database_url):
    now = [0.0]
    async with Database(database_url, last_write=LastWrite(clock=lambda: now[0])) as database:
        await database.plans.put(a_plan())
        with no_room_for_tables(database_url):
            now[0] = TRUSTED_SECONDS - 0.1
            await database.check_ready()
            now[0] = TRUSTED_SECONDS
            with pytest.raises(DatabaseUnavailable, match="No space left"):
                await database.check_ready()
        now[0] += TRIED_AGAIN_SECONDS
        await database.check_ready()


async def test_a_process_that_stored_nothing_yet_finds_out_too(database_url):
    async with Database(database_url) as database:
        with no_room_for_tables(database_url), pytest.raises(DatabaseUnavailable, match="No space left"):
            await database.check_ready()


def test_one_tries_for_all_who_ask_at_the_same_time():
    now = [100.0]
    last_write = LastWrite(clock=lambda: now[0])
    assert [last_write.take_turn() for _ in range(3)] == [True, False, False]
    last_write.failed(DatabaseUnavailable("The disk is full."))
    now[0] += TRIED_AGAIN_SECONDS
    assert [last_write.take_turn() for _ in range(3)] == [True, False, False]
