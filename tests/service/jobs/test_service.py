from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import psycopg
import pytest

from plimsoll.service.ground.database_address import libpq_url
from plimsoll.service.ground.errors import IdempotencyConflict, JobNotFound, StorageLimitReached
from plimsoll.service.ground.settings import Settings
from plimsoll.service.jobs import service as jobs_module
from plimsoll.service.jobs.service import JobService
from plimsoll.service.persistence.database import Database
from plimsoll.service.persistence.records import Progress

# Nothing here takes as long but on a machine that stands still.
PATIENCE_SECONDS = 240.0


@pytest.fixture
def service(database):
    return JobService(database, Settings(job_max_attempts=2))


async def queued(service, **overrides):
    return await service.submit("quantize", {"scheme": "nf4"}, route="/quantize", **overrides)


async def followed(service, job_id, after_id=0):
    return [event async for event in service.events(await service.to_follow(job_id), after_id)]


def states(events):
    return [event.data["state"] for event in events if event.kind == "state"]


async def test_a_submitted_job_waits_with_what_was_asked(service):
    job = await queued(service, queue="gpu", priority=5, estimate={"quantized_bytes": 1})
    assert await service.get(job.job_id) == job
    assert (job.state, job.queue, job.priority, job.request) == ("queued", "gpu", 5, {"scheme": "nf4"})
    assert (job.estimate, job.max_attempts) == ({"quantized_bytes": 1}, 2)
    assert [listed.job_id for listed in (await service.page(kind="quantize")).items] == [job.job_id]


async def test_the_same_key_gives_the_first_job_and_refuses_another_request(service):
    first = await queued(service, idempotency_key="k")
    assert not first.is_replay
    assert await queued(service, idempotency_key="k") == replace(first, is_replay=True)
    with pytest.raises(IdempotencyConflict):
        await service.submit("quantize", {"scheme": "int8"}, idempotency_key="k", route="/quantize")


async def test_what_happened_and_what_happens_is_told_until_the_end(service, database):
    job = await queued(service)
    attempt = await database.jobs.begin_attempt(job.job_id, "worker")
    following = asyncio.create_task(followed(service, job.job_id))
    await asyncio.sleep(0.2)
    await database.jobs.report_progress(job.job_id, attempt.token, Progress(done=1, total=2, unit="layers"))
    await database.jobs.finish(job.job_id, attempt.token, "succeeded", {"total": 3})
    events = await asyncio.wait_for(following, PATIENCE_SECONDS)
    assert [event.kind for event in events] == ["state", "state", "progress", "result", "state"]
    assert states(events) == ["queued", "running", "succeeded"]
    assert [event.id for event in events] == sorted({event.id for event in events})


async def test_a_finished_job_tells_its_story_and_ends(service):
    job = await queued(service)
    await service.cancel(job.job_id)
    assert states(await asyncio.wait_for(followed(service, job.job_id), PATIENCE_SECONDS)) == ["queued", "cancelled"]


async def test_what_was_seen_before_is_not_told_again(service):
    job = await queued(service)
    await service.cancel(job.job_id)
    first, last = await followed(service, job.job_id)
    assert await followed(service, job.job_id, first.id) == [last]
    assert await asyncio.wait_for(followed(service, job.job_id, last.id), PATIENCE_SECONDS) == []


async def test_when_the_process_ends_its_followers_are_let_go_and_go_on_elsewhere(service, database):
    job = await queued(service)
    following = service.events(job)
    first = await anext(following)
    rest = asyncio.ensure_future(anext(following, None))
    await asyncio.sleep(0)
    service.end_streams()
    assert await asyncio.wait_for(rest, PATIENCE_SECONDS) is None
    assert await followed(service, job.job_id) == []
    elsewhere = JobService(database, Settings())
    await elsewhere.cancel(job.job_id)
    assert states(await followed(elsewhere, job.job_id, first.id)) == ["cancelled"]


async def test_nobody_can_follow_a_job_that_is_not_there(service):
    with pytest.raises(JobNotFound):
        await followed(service, "no-such-job")


async def test_a_follower_who_comes_later_misses_nothing(service, database):
    job = await queued(service)
    early = asyncio.create_task(followed(service, job.job_id))
    await asyncio.sleep(0.2)
    attempt = await database.jobs.begin_attempt(job.job_id, "worker")
    await asyncio.sleep(0.2)
    late = asyncio.create_task(followed(service, job.job_id))
    await asyncio.sleep(0.1)
    await database.jobs.finish(job.job_id, attempt.token, "succeeded", {})
    assert await asyncio.wait_for(early, PATIENCE_SECONDS) == await asyncio.wait_for(late, PATIENCE_SECONDS)


async def test_a_follower_who_is_far_behind_reads_what_is_no_longer_kept(service, database, monkeypatch):
    monkeypatch.setattr(jobs_module, "EVENTS_KEPT", 3)
    job = await queued(service)
    attempt = await database.jobs.begin_attempt(job.job_id, "worker")
    async with aclosing(service.events(job)) as slow:
        assert (await anext(slow)).data == {"state": "queued"}
        for done in range(20):
            await database.jobs.report_progress(job.job_id, attempt.token, Progress(done=done, total=20, unit=""))
        await database.jobs.finish(job.job_id, attempt.token, "succeeded", {})
        await asyncio.sleep(0.3)
        rest = [event async for event in slow]
    assert [event.data["done"] for event in rest if event.kind == "progress"] == list(range(20))
    assert rest[-1].data == {"state": "succeeded"}


async def test_hundreds_follow_with_two_connections_between_them(database_url):
    # One to read, one to listen; the pool is larger and the rest of it stays free.
    async with Database(database_url, pool_size=10) as database:
        service = JobService(database, Settings())
        jobs = [await queued(service) for _ in range(20)]
        followers = [asyncio.create_task(followed(service, jobs[number % 20].job_id)) for number in range(300)]
        await asyncio.sleep(1)
        with psycopg.connect(libpq_url(database_url)) as connection:
            query = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            connections = connection.execute(query).fetchone()[0]
        for job in jobs:
            await service.cancel(job.job_id)
        told = await asyncio.wait_for(asyncio.gather(*followers), PATIENCE_SECONDS)
    assert {tuple(states(events)) for events in told} == {("queued", "cancelled")}
    # Each follower first looks its job up, through the pool like any request.
    assert connections <= 11


async def test_all_who_begin_to_follow_at_once_share_one_look(service, database, monkeypatch):
    job = await queued(service)
    looks = []
    get = database.jobs.get

    async def counted(job_id):
        looks.append(job_id)
        return await get(job_id)

    monkeypatch.setattr(database.jobs, "get", counted)
    assert await asyncio.gather(*(service.to_follow(job.job_id) for _ in range(100))) == [job] * 100
    assert looks == [job.job_id]
    # A later one looks for itself, and nobody sees another's.
    await service.to_follow(job.job_id)
    assert len(looks) == 2
    with pytest.raises(JobNotFound):
        await service.to_follow(job.job_id, key_id="another")


async def test_a_look_that_nobody_waits_for_any_more_is_no_lost_error(service):
    left = asyncio.ensure_future(service.to_follow("no-such-job"))
    await asyncio.sleep(0)
    left.cancel()
    with pytest.raises(JobNotFound):
        await service.to_follow("no-such-job")


async def test_an_event_that_nobody_announced_is_seen_by_looking(service, database, monkeypatch):
    job = await queued(service)

    async def hear_nothing(self):
        await asyncio.Event().wait()

    monkeypatch.setattr(type(database.job_changes), "_listen", hear_nothing)
    following = asyncio.create_task(followed(service, job.job_id))
    await asyncio.sleep(0.3)
    await service.cancel(job.job_id)
    assert states(await asyncio.wait_for(following, PATIENCE_SECONDS)) == ["queued", "cancelled"]


async def test_nothing_is_read_for_a_job_that_nobody_follows_any_more(service):
    job = await queued(service)
    following = service.events(job)
    await anext(following)
    assert list(service._feeds) == [job.job_id]
    await following.aclose()
    assert service._feeds == {}


async def test_jobs_are_counted_among_what_their_caller_stores_and_a_known_key_is_answered(database):
    service = JobService(database, Settings(key_stored_bytes_per_day=20))
    first = await queued(service, asked_by="a", idempotency_key="k")  # {"scheme":"nf4"} and null: 20 bytes
    with pytest.raises(StorageLimitReached):
        await queued(service, asked_by="a")
    assert (await queued(service, asked_by="a", idempotency_key="k")).job_id == first.job_id
    await queued(service, asked_by="b")
