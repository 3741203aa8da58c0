from __future__ import annotations

import asyncio

import psycopg
import pytest

from plimsoll.service.access.keys import make_key
from plimsoll.service.ground.database_address import libpq_url
from plimsoll.service.ground.errors import DatabaseUnavailable, InvalidCursor, PlanNotFound, Unstorable
from plimsoll.service.persistence.database import Database
from plimsoll.service.persistence.records import PlanFilter
from tests.service.persistence.factories import a_plan


def committed_plans(url: str) -> int:
    with psycopg.connect(libpq_url(url)) as connection:
        row = connection.execute("SELECT count(*) FROM plans").fetchone()
    assert row is not None
    return int(row[0])


async def test_a_plan_comes_back_as_it_was_stored(database):
    plan = a_plan(model_config={"hidden_size": 4096}, request={"training": {"tokens": 1.5e13}})
    await database.plans.put(plan)
    stored = await database.plans.get("plan-1")
    assert stored.created_at is not None
    for field in ("plan_id", "kind", "request", "model_config", "answer", "fits", "verdict", "summary", "gpus"):
        assert getattr(stored, field) == getattr(plan, field)


async def test_the_answer_keeps_every_character(database):
    answer = '{"b": 1.50,   "a": 1e3, "b": 12345678901234567890, "text": "\\u0000 é"}'
    await database.plans.put(a_plan(answer=answer))
    assert (await database.plans.get("plan-1")).answer == answer


async def test_a_plan_is_committed_when_put_returns(database, database_url):
    await database.plans.put(a_plan())
    assert committed_plans(database_url) == 1


async def test_the_first_of_two_plans_with_one_id_stays(database):
    assert await database.plans.put(a_plan(summary="first"))
    assert not await database.plans.put(a_plan(summary="second"))
    assert (await database.plans.get("plan-1")).summary == "first"


async def test_of_plans_put_at_once_only_the_stored_ones_are_told_so(database):
    await database.plans.put(a_plan("old"))
    puts = [database.plans.put(a_plan(name, summary=name)) for name in ("b", "old", "a", "b")]
    assert await asyncio.gather(*puts) == [True, False, True, False]


@pytest.mark.parametrize("plan_id", ["absent", "", "\x00", "\ud800", "x" * 10_000])
async def test_an_id_that_no_plan_has_is_not_found(database, plan_id):
    with pytest.raises(PlanNotFound):
        await database.plans.get(plan_id)


async def a_key(database: Database) -> str:
    record = make_key("test", ["plan"], lifetime=None).record
    return (await database.keys.add(record)).key_id


async def test_the_key_that_a_plan_is_stored_for_may_see_it(database):
    key_id, other = await a_key(database), await a_key(database)
    assert await database.plans.put(a_plan(), reader=key_id)
    assert await database.keys.may_read(key_id, "plan-1")
    assert not await database.keys.may_read(other, "plan-1")


async def test_a_key_may_see_a_plan_that_was_stored_before(database):
    key_id = await a_key(database)
    await database.plans.put(a_plan())
    assert not await database.plans.put(a_plan(), reader=key_id)
    assert await database.keys.may_read(key_id, "plan-1")


async def test_nothing_is_stored_for_a_key_that_is_not_there(database, database_url):
    puts = [database.plans.put(a_plan("a"), reader="0" * 16), database.plans.put(a_plan("b"))]
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    assert isinstance(outcomes[0], psycopg.errors.ForeignKeyViolation)
    assert outcomes[1] is True
    assert committed_plans(database_url) == 1


async def test_concurrent_puts_share_transactions(database, database_url):
    def transactions() -> int:
        with psycopg.connect(libpq_url(database_url), autocommit=True) as connection:
            row = connection.execute("SELECT count(DISTINCT xmin::text) FROM plans").fetchone()
        assert row is not None
        return int(row[0])

    await asyncio.gather(*(database.plans.put(a_plan(f"plan-{number}")) for number in range(150)))
    # All were waiting when the task began: a group of a hundred and one of fifty.
    assert transactions() == 2


async def test_replicas_may_put_the_same_plans_in_any_order(database, database_url):
    names = [f"plan-{number}" for number in range(60)]
    async with Database(database_url) as other:
        for _ in range(5):
            puts = [database.plans.put(a_plan(name)) for name in names]
            puts += [other.plans.put(a_plan(name)) for name in reversed(names)]
            await asyncio.gather(*puts)
    assert committed_plans(database_url) == 60


async def test_one_plan_that_cannot_be_stored_fails_alone(database, database_url):
    puts = [database.plans.put(a_plan(f"plan-{number}")) for number in range(3)]
    puts.append(database.plans.put(a_plan("bad", request={"model": "\x00"})))
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [bool] * 3 + [Unstorable]
    assert committed_plans(database_url) == 3


async def test_an_error_reaches_everyone_who_waits(database, database_url):
    with psycopg.connect(libpq_url(database_url), autocommit=True) as connection:
        connection.execute("ALTER TABLE plans RENAME TO gone")
    outcomes = await asyncio.gather(
        *(database.plans.put(a_plan(f"plan-{number}")) for number in range(3)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [DatabaseUnavailable] * 3


async def test_someone_who_stops_waiting_takes_nobody_along(database):
    patient = asyncio.create_task(database.plans.put(a_plan("patient")))
    impatient = asyncio.create_task(database.plans.put(a_plan("impatient")))
    await asyncio.sleep(0)
    impatient.cancel()
    await patient
    assert (await database.plans.get("patient")).plan_id == "patient"


async def test_pages_follow_each_other_newest_first(database):
    for number in range(5):
        await database.plans.put(a_plan(f"plan-{number}"))
    first = await database.plans.page(limit=2)
    second = await database.plans.page(limit=2, cursor=first.next_cursor)
    third = await database.plans.page(limit=2, cursor=second.next_cursor)
    seen = [[item.plan_id for item in page.items] for page in (first, second, third)]
    assert seen == [["plan-4", "plan-3"], ["plan-2", "plan-1"], ["plan-0"]]
    assert third.next_cursor is None


async def test_plans_of_one_moment_are_all_seen_once(database):
    # One transaction, hence one time for all: the id alone orders them.
    await asyncio.gather(*(database.plans.put(a_plan(f"plan-{number}")) for number in range(7)))
    seen, cursor = [], None
    while True:
        page = await database.plans.page(limit=3, cursor=cursor)
        seen += [item.plan_id for item in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == [f"plan-{number}" for number in range(6, -1, -1)]


async def test_a_last_page_that_is_just_full_has_no_next(database):
    for number in range(2):
        await database.plans.put(a_plan(f"plan-{number}"))
    assert (await database.plans.page(limit=2)).next_cursor is None


async def test_a_page_with_nothing_on_it_is_empty(database):
    page = await database.plans.page()
    assert (page.items, page.next_cursor) == ((), None)


@pytest.mark.parametrize(
    "wanted",
    [{"kind": "infer"}, {"model": "other"}, {"gpu": "other"}, {"fits": False}, {"verdict": "no"}],
    ids=lambda wanted: next(iter(wanted)),
)
async def test_each_filter_leaves_the_plans_that_match(database, wanted):
    await database.plans.put(a_plan("plain"))
    await database.plans.put(a_plan("wanted", **wanted))
    assert [item.plan_id for item in (await database.plans.page(PlanFilter(**wanted))).items] == ["wanted"]


@pytest.mark.parametrize("cursor", ["", "nonsense", "bnVsbA", "WzEsMl0", "é", "W10", "A" * 9])
async def test_a_cursor_of_others_is_refused(database, cursor):
    with pytest.raises(InvalidCursor):
        await database.plans.page(cursor=cursor)


async def test_what_was_put_is_stored_before_the_database_closes(database_url):
    database = Database(database_url)
    put = asyncio.create_task(database.plans.put(a_plan()))
    await asyncio.sleep(0)
    await database.close()
    await put
    assert committed_plans(database_url) == 1
