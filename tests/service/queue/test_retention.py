"""What is old goes, what is at work stays."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from plimsoll.service.access.keys import make_key
from plimsoll.service.ground.database_address import libpq_url
from plimsoll.service.ground.errors import PlanNotFound
from plimsoll.service.ground.settings import Settings
from plimsoll.service.persistence import retention as sql_retention
from plimsoll.service.queue.engine import build_queue
from plimsoll.service.queue.retention import Retention
from tests.service.persistence.factories import a_job, a_measurement, a_plan


@pytest.fixture
def ask(database_url):
    """Return a function that runs one statement."""

    def run(query, *values):
        with psycopg.connect(libpq_url(database_url), autocommit=True) as connection:
            cursor = connection.execute(query, values)
            return cursor.fetchall() if cursor.description else []

    return run


def keeping(**days):
    return Settings(**({"keep_plans_days": 10, "keep_jobs_days": 5, "keep_events_days": 1} | days))


async def a_finished_job(database, ask, days, **fields):
    job = await database.jobs.submit(a_job(**fields), idempotency_key=None, route="r")
    attempt = await database.jobs.begin_attempt(job.job_id, "w")
    await database.jobs.finish(job.job_id, attempt.token, "succeeded", {"total": 1})
    ask("UPDATE jobs SET finished_at = now() - make_interval(days => %s) WHERE job_id = %s", days, job.job_id)
    return job.job_id


async def an_old_plan(database, ask, plan_id, days=11):
    await database.plans.put(a_plan(plan_id))
    ask("UPDATE plans SET last_asked_at = now() - make_interval(days => %s) WHERE plan_id = %s", days, plan_id)


async def test_finished_jobs_go_with_their_events_and_younger_ones_stay(database, ask):
    await a_finished_job(database, ask, 6)
    young = await a_finished_job(database, ask, 4)
    await Retention(database.expired, keeping()).delete_expired()
    assert ask("SELECT job_id FROM jobs") == [(young,)]
    # Its events are older than a day; its result stands in its own row.
    assert ask("SELECT count(*) FROM job_events") == [(0,)]
    assert (await database.jobs.get(young)).result == {"total": 1}


async def test_waiting_and_running_jobs_stay_however_old(database, ask):
    waiting = await database.jobs.submit(a_job(), idempotency_key=None, route="r")
    running = await database.jobs.submit(a_job(), idempotency_key=None, route="r")
    await database.jobs.begin_attempt(running.job_id, "w")
    ask("UPDATE jobs SET created_at = now() - interval '1 year', started_at = now() - interval '1 year'")
    ask("UPDATE job_events SET created_at = now() - interval '1 year'")
    before = ask("SELECT count(*) FROM job_events")
    await Retention(database.expired, keeping()).delete_expired()
    assert {row[0] for row in ask("SELECT job_id FROM jobs")} == {waiting.job_id, running.job_id}
    assert ask("SELECT count(*) FROM job_events") == before


async def test_plans_go_that_nobody_asked_for_and_nothing_rests_on(database, ask):
    for plan_id in ("old", "with-job", "measured"):
        await an_old_plan(database, ask, plan_id)
    await an_old_plan(database, ask, "young", days=9)
    await database.jobs.submit(a_job(kind="validate", plan_id="with-job"), idempotency_key=None, route="r")
    await database.measurements.add(a_measurement(plan_id="measured"))
    key = await database.keys.add(make_key("k", ["plan"], lifetime=None).record)
    await database.keys.let_read(key.key_id, "old")
    await Retention(database.expired, keeping()).delete_expired()
    assert {row[0] for row in ask("SELECT plan_id FROM plans")} == {"with-job", "measured", "young"}
    assert ask("SELECT count(*) FROM plan_readers") == [(0,)]


async def test_a_job_that_goes_lets_its_plan_go_and_leaves_its_measurement(database, ask):
    await an_old_plan(database, ask, "old")
    job_id = await a_finished_job(database, ask, 6, kind="validate", plan_id="old")
    await database.measurements.add(a_measurement(job_id=job_id))
    await Retention(database.expired, keeping()).delete_expired()
    assert ask("SELECT count(*) FROM plans") == [(0,)]
    assert ask("SELECT job_id FROM measurements") == [(None,)]


async def test_zero_keeps_everything(database, ask):
    await a_finished_job(database, ask, 10_000)
    await an_old_plan(database, ask, "old", days=10_000)
    settings = keeping(keep_plans_days=0, keep_jobs_days=0, keep_events_days=0)
    await Retention(database.expired, settings).delete_expired()
    assert ask("SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM plans)") == [(1, 1)]


async def test_more_than_one_transaction_takes_is_deleted(database, ask, monkeypatch):
    monkeypatch.setattr(sql_retention, "_ROWS_AT_ONCE", 2)
    for number in range(5):
        await an_old_plan(database, ask, f"plan-{number}")
    assert await database.expired.delete_plans(timedelta(days=10)) == 5


async def test_asking_again_renews_a_plan(database, ask):
    await an_old_plan(database, ask, "old")
    await database.plans.note_asked("old")
    assert await database.expired.delete_plans(timedelta(days=10)) == 0
    with pytest.raises(PlanNotFound):
        await database.plans.note_asked("none")


async def test_the_queue_deletes_by_the_hour_and_a_sweep_that_died_is_not_taken_for_a_job(database_url):
    async def nothing(*_):
        return None

    queue, _ = build_queue(database_url, nothing, concurrency=1, delete_expired=nothing)
    periodic = {task.task.name: task.cron for task in queue.periodic_registry.periodic_tasks.values()}
    assert periodic == {"delete_expired": "17 * * * *"}
