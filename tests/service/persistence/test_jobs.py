from __future__ import annotations

import asyncio
import dataclasses
from uuid import uuid4

import psycopg
import pytest

from plimsoll.service.ground.database_address import libpq_url
from plimsoll.service.ground.errors import IdempotencyConflict, JobNotFound, PlanNotFound, QueueFull
from plimsoll.service.persistence.database import Database
from plimsoll.service.persistence.records import Job
from tests.service.persistence.factories import a_job, a_plan, some_progress

ROUTE = "POST /quantize"


async def submitted(database: Database, **changes: object) -> Job:
    return await database.jobs.submit(a_job(**changes), idempotency_key=None, route=ROUTE)


async def events(database: Database, job_id: str) -> list[tuple[str, object]]:
    return [(event.kind, event.data.get("state")) for event in await database.jobs.events_after(job_id)]


def queue_rows(url: str) -> list[tuple[object, ...]]:
    query = "SELECT id, queue_name, task_name, priority, args, status::text FROM procrastinate_jobs ORDER BY id"
    with psycopg.connect(libpq_url(url)) as connection:
        return connection.execute(query).fetchall()


async def test_a_job_is_queued_under_its_id(database, database_url):
    job = await submitted(database, queue="gpu:h100", priority=3)
    assert (job.state, job.attempts, job.progress, job.worker, job.started_at) == ("queued", 0, None, None, None)
    assert queue_rows(database_url) == [(job.queue_job_id, "gpu:h100", "run_job", 3, {"job_id": job.job_id}, "todo")]
    assert await events(database, job.job_id) == [("state", "queued")]
    assert await database.jobs.get(job.job_id) == job


async def test_a_job_of_an_unknown_plan_leaves_nothing(database, database_url):
    with pytest.raises(PlanNotFound):
        await submitted(database, kind="validate", plan_id="absent")
    assert queue_rows(database_url) == []
    assert (await database.jobs.page()).items == ()


async def test_a_job_of_a_stored_plan_names_it(database):
    await database.plans.put(a_plan())
    job = await submitted(database, kind="validate", plan_id="plan-1")
    assert [found.job_id for found in (await database.jobs.page(plan_id="plan-1")).items] == [job.job_id]


async def test_the_same_key_and_request_make_one_job(database, database_url):
    jobs = await asyncio.gather(*(database.jobs.submit(a_job(), idempotency_key="key", route=ROUTE) for _ in range(8)))
    assert len({job.job_id for job in jobs}) == 1
    assert len(queue_rows(database_url)) == 1


async def test_the_same_key_returns_the_job_as_it_stands_now(database):
    first = await database.jobs.submit(a_job(), idempotency_key="key", route=ROUTE)
    await database.jobs.request_cancel(first.job_id)
    again = await database.jobs.submit(a_job(), idempotency_key="key", route=ROUTE)
    assert (again.job_id, again.state) == (first.job_id, "cancelled")


async def test_the_same_key_with_another_request_is_a_conflict(database):
    await database.jobs.submit(a_job(), idempotency_key="key", route=ROUTE)
    with pytest.raises(IdempotencyConflict):
        await database.jobs.submit(a_job(request={"scheme": "int8"}), idempotency_key="key", route=ROUTE)


async def test_the_same_key_on_another_route_is_another_job(database):
    first = await database.jobs.submit(a_job(), idempotency_key="key", route=ROUTE)
    second = await database.jobs.submit(a_job(), idempotency_key="key", route="POST /elsewhere")
    assert first.job_id != second.job_id


async def test_the_limit_holds_for_jobs_that_come_at_once(database_url):
    async with Database(database_url, queue_limit=3) as database:
        outcomes = await asyncio.gather(*(submitted(database) for _ in range(8)), return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, QueueFull)]
    assert len(refused) == 5
    # Nothing has ended in the last 300 s, so that is the only pace there is to go by.
    assert {(error.waiting, error.limit, error.retry_after_seconds) for error in refused} == {(3, 3, 300)}


async def test_a_full_queue_says_how_often_a_job_ends(database_url):
    async with Database(database_url, queue_limit=1) as database:
        for _ in range(4):
            await database.jobs.request_cancel((await submitted(database)).job_id)
        await submitted(database)
        with pytest.raises(QueueFull) as refused:
            await submitted(database)
    # 4 ended in the last 300 s: one in 75 s.
    assert refused.value.retry_after_seconds == 75


async def test_a_known_key_is_answered_though_the_queue_is_full(database_url):
    async with Database(database_url, queue_limit=1) as database:
        first = await database.jobs.submit(a_job(), idempotency_key="key", route=ROUTE)
        again = await database.jobs.submit(a_job(), idempotency_key="key", route=ROUTE)
    assert again == dataclasses.replace(first, is_replay=True)


@pytest.mark.parametrize("job_id", ["absent", "\x00"])
async def test_an_id_that_no_job_has_is_not_found(database, job_id):
    for find in (database.jobs.get, database.jobs.request_cancel):
        with pytest.raises(JobNotFound):
            await find(job_id)
    with pytest.raises(JobNotFound):
        await database.jobs.begin_attempt(job_id, "worker")


async def test_an_attempt_runs_the_job(database):
    job = await submitted(database)
    attempt = await database.jobs.begin_attempt(job.job_id, "worker-1")
    assert attempt is not None
    assert (attempt.job.state, attempt.job.attempts, attempt.job.worker) == ("running", 1, "worker-1")
    assert attempt.job.started_at is not None


async def test_progress_is_stored_and_told(database):
    job = await submitted(database)
    attempt = await database.jobs.begin_attempt(job.job_id, "worker-1")
    reply = await database.jobs.report_progress(job.job_id, attempt.token, some_progress(5))
    assert (reply.still_owner, reply.cancel_requested) == (True, False)
    assert (await database.jobs.get(job.job_id)).progress == some_progress(5)
    last = (await database.jobs.events_after(job.job_id))[-1]
    assert last.data == {"done": 5, "total": 10, "unit": "layers", "message": "half way"}


async def test_a_finished_job_ends_with_its_result_and_its_state(database):
    job = await submitted(database)
    attempt = await database.jobs.begin_attempt(job.job_id, "worker-1")
    assert await database.jobs.finish(job.job_id, attempt.token, "succeeded", {"bytes": 7})
    done = await database.jobs.get(job.job_id)
    assert (done.state, done.result, done.error) == ("succeeded", {"bytes": 7}, None)
    assert done.finished_at is not None
    assert await events(database, job.job_id) == [
        ("state", "queued"),
        ("state", "running"),
        ("result", None),
        ("state", "succeeded"),
    ]


async def test_a_failed_job_tells_why(database):
    job = await submitted(database)
    attempt = await database.jobs.begin_attempt(job.job_id, "worker-1")
    error = {"code": "out-of-memory", "detail": "…"}
    await database.jobs.finish(job.job_id, attempt.token, "failed", error=error)
    assert (await database.jobs.get(job.job_id)).error == error
    assert (await database.jobs.events_after(job.job_id))[-1].data == {"state": "failed", "error": error}


async def test_nothing_is_taken_from_an_attempt_that_was_replaced(database):
    job = await submitted(database)
    stale = await database.jobs.begin_attempt(job.job_id, "paused")
    fresh = await database.jobs.begin_attempt(job.job_id, "next")
    before = await database.jobs.get(job.job_id)
    assert not (await database.jobs.report_progress(job.job_id, stale.token, some_progress())).still_owner
    assert not await database.jobs.finish(job.job_id, stale.token, "succeeded", {"from": "paused"})
    assert not await database.jobs.release(job.job_id, stale.token)
    assert await database.jobs.get(job.job_id) == before
    assert await database.jobs.finish(job.job_id, fresh.token, "succeeded", {"from": "next"})


async def test_a_job_is_finished_once(database):
    job = await submitted(database)
    attempt = await database.jobs.begin_attempt(job.job_id, "worker-1")
    outcomes = await asyncio.gather(
        *(database.jobs.finish(job.job_id, attempt.token, "succeeded", {"by": number}) for number in range(6))
    )
    assert sorted(outcomes) == [False] * 5 + [True]
    assert [kind for kind, _ in await events(database, job.job_id)].count("result") == 1


async def test_a_finished_job_is_not_begun_again(database):
    job = await submitted(database)
    attempt = await database.jobs.begin_attempt(job.job_id, "worker-1")
    await database.jobs.finish(job.job_id, attempt.token, "succeeded", {})
    assert await database.jobs.begin_attempt(job.job_id, "worker-2") is None


async def test_a_job_fails_when_it_was_begun_as_often_as_it_may_be(database):
    job = await submitted(database, max_attempts=2)
    assert await database.jobs.begin_attempt(job.job_id, "worker-1") is not None
    assert await database.jobs.begin_attempt(job.job_id, "worker-2") is not None
    assert await database.jobs.begin_attempt(job.job_id, "worker-3") is None
    failed = await database.jobs.get(job.job_id)
    assert (failed.state, failed.attempts) == ("failed", 2)
    assert failed.error["code"] == "attempts-exhausted"


async def test_a_waiting_job_is_cancelled_at_once_and_leaves_the_queue(database, database_url):
    job = await submitted(database)
    cancelled = await database.jobs.request_cancel(job.job_id)
    assert cancelled.state == "cancelled"
    assert [row[-1] for row in queue_rows(database_url)] == ["cancelled"]
    assert await events(database, job.job_id) == [("state", "queued"), ("state", "cancelled")]
    assert await database.jobs.begin_attempt(job.job_id, "worker-1") is None


async def test_the_worker_of_a_running_job_is_asked_to_stop(database):
    job = await submitted(database)
    attempt = await database.jobs.begin_attempt(job.job_id, "worker-1")
    asked = await database.jobs.request_cancel(job.job_id)
    assert (asked.state, asked.cancel_requested) == ("running", True)
    assert (await database.jobs.report_progress(job.job_id, attempt.token, some_progress())).cancel_requested
    assert await database.jobs.finish(job.job_id, attempt.token, "cancelled")


async def test_asking_twice_is_told_once(database):
    job = await submitted(database)
    await database.jobs.begin_attempt(job.job_id, "worker-1")
    await database.jobs.request_cancel(job.job_id)
    before = await events(database, job.job_id)
    await database.jobs.request_cancel(job.job_id)
    assert await events(database, job.job_id) == before


async def test_a_job_whose_worker_died_after_it_was_asked_is_cancelled_by_the_next(database):
    job = await submitted(database)
    await database.jobs.begin_attempt(job.job_id, "dead")
    await database.jobs.request_cancel(job.job_id)
    assert await database.jobs.begin_attempt(job.job_id, "next") is None
    assert (await database.jobs.get(job.job_id)).state == "cancelled"


async def test_cancelling_leaves_a_finished_job_as_it_is(database):
    job = await submitted(database)
    attempt = await database.jobs.begin_attempt(job.job_id, "worker-1")
    await database.jobs.finish(job.job_id, attempt.token, "succeeded", {"bytes": 7})
    before = await database.jobs.get(job.job_id)
    assert await database.jobs.request_cancel(job.job_id) == before


async def test_a_job_handed_back_does_not_lose_an_attempt(database):
    job = await submitted(database, max_attempts=1)
    attempt = await database.jobs.begin_attempt(job.job_id, "stopping")
    assert await database.jobs.release(job.job_id, attempt.token)
    assert (await database.jobs.get(job.job_id)).state == "queued"
    again = await database.jobs.begin_attempt(job.job_id, "next")
    assert (again.job.attempts, again.job.max_attempts) == (2, 2)


async def test_a_job_handed_back_after_it_was_to_stop_is_cancelled(database):
    job = await submitted(database)
    attempt = await database.jobs.begin_attempt(job.job_id, "stopping")
    await database.jobs.request_cancel(job.job_id)
    assert await database.jobs.release(job.job_id, attempt.token)
    assert (await database.jobs.get(job.job_id)).state == "cancelled"


async def test_a_token_belongs_to_one_job(database):
    one, other = await submitted(database), await submitted(database)
    attempt = await database.jobs.begin_attempt(one.job_id, "worker-1")
    assert not await database.jobs.finish(other.job_id, attempt.token, "succeeded", {})
    assert not await database.jobs.finish(one.job_id, uuid4(), "succeeded", {})


async def test_events_after_one_are_those_that_followed(database):
    job = await submitted(database)
    await database.jobs.begin_attempt(job.job_id, "worker-1")
    first, second = await database.jobs.events_after(job.job_id)
    assert await database.jobs.events_after(job.job_id, first.id) == (second,)
    assert await database.jobs.events_after(job.job_id, 0, 1) == (first,)


async def test_jobs_are_paged_newest_first_and_filtered(database):
    made = [await submitted(database) for _ in range(3)]
    await database.jobs.request_cancel(made[1].job_id)
    first = await database.jobs.page(limit=2)
    second = await database.jobs.page(limit=2, cursor=first.next_cursor)
    seen = [job.job_id for page in (first, second) for job in page.items]
    assert seen == [job.job_id for job in reversed(made)]
    assert [job.job_id for job in (await database.jobs.page(state="cancelled")).items] == [made[1].job_id]
    assert (await database.jobs.page(kind="validate")).items == ()


async def test_jobs_are_counted_by_state(database):
    await database.jobs.request_cancel((await submitted(database)).job_id)
    await submitted(database)
    counts = await database.jobs.counts()
    assert counts == {"queued": 1, "running": 0, "succeeded": 0, "failed": 0, "cancelled": 1}
