"""Jobs as the API sees them: queued, looked up, cancelled, followed.

Any number of clients may follow jobs: all who follow the same job share one
reader, and all readers take turns at the database, so that they hold one of its
connections at a time, beside the one that hears of changes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import structlog

from plimsoll.service.access.rate_limits import StorageLimits
from plimsoll.service.ground.canonical import canonical_json
from plimsoll.service.ground.errors import DatabaseUnavailable, JobNotFound
from plimsoll.service.ground.settings import Settings
from plimsoll.service.observability.tracing import current_traceparent
from plimsoll.service.persistence.database import Database
from plimsoll.service.persistence.records import FINAL_STATES, Job, JobEvent, JobKind, JobState, Json, NewJob, Page

POLL_SECONDS = 1.0
"""How soon an event is seen that was not heard of: a pooler in transaction mode passes no notifications."""
EVENTS_KEPT = 256
"""Of the latest events of a job, for those who follow it; who is slower reads them again."""
READ_LIMIT = 100

log = structlog.get_logger(__name__)


class JobService:
    """Everything that the API does with jobs."""

    def __init__(self, database: Database, settings: Settings, *, storage: StorageLimits | None = None) -> None:
        """Queue jobs on a database, counted in `storage`; in limits of the service's own without one."""
        self._database = database
        self._settings = settings
        self._storage = storage or StorageLimits(settings.key_stored_bytes_per_day)
        self._feeds: dict[str, _Feed] = {}
        self._looking: dict[str, asyncio.Future[Job]] = {}
        # Readers take turns: hundreds of them must leave the pool to the requests.
        self._turn = asyncio.Semaphore(1)
        self._is_ending = False

    async def submit(
        self,
        kind: JobKind,
        request: Json,
        *,
        plan_id: str | None = None,
        estimate: Json | None = None,
        queue: str = "cpu",
        priority: int = 0,
        key_id: str | None = None,
        idempotency_key: str | None = None,
        route: str,
        asked_by: str = "",
    ) -> Job:
        """Queue a job and return it; the same key on the same route gives the first job again.

        `route` is where the request came in. Raises IdempotencyConflict for another request under the key, QueueFull,
        JobQuotaReached, PlanNotFound, Unstorable and, where `asked_by` has stored its share, StorageLimitReached.
        """
        job = NewJob(
            kind=kind,
            queue=queue,
            priority=priority,
            plan_id=plan_id,
            request=request,
            estimate=estimate,
            max_attempts=self._settings.job_max_attempts,
            key_id=key_id,
            traceparent=current_traceparent(),
        )
        queued = await self._database.jobs.submit(
            job, idempotency_key=idempotency_key, route=route, check_room=lambda: self._storage.check(asked_by)
        )
        if not queued.is_replay:
            self._storage.note(asked_by, len(canonical_json(request)) + len(canonical_json(estimate)))
        log.info("job queued", job_id=queued.job_id, kind=kind, plan_id=plan_id, queue=queue)
        return queued

    async def get(self, job_id: str, *, key_id: str | None = None) -> Job:
        """Return a job as it stands; raises JobNotFound, also where `key_id` is given and the job is another's."""
        return _shown(await self._database.jobs.get(job_id), key_id)

    async def page(
        self,
        *,
        kind: JobKind | None = None,
        state: JobState | None = None,
        plan_id: str | None = None,
        key_id: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Job]:
        """Return jobs, newest first, of those that match each filter given; raises InvalidCursor."""
        return await self._database.jobs.page(
            kind=kind, state=state, plan_id=plan_id, key_id=key_id, limit=limit, cursor=cursor
        )

    async def cancel(self, job_id: str, *, key_id: str | None = None) -> Job:
        """Cancel a job and return it as it then stands; raises JobNotFound as `get` does.

        A waiting job is cancelled at once. A running one is still running in
        the answer; its worker ends it within seconds. A finished one stays.
        """
        await self.get(job_id, key_id=key_id)
        return await self._database.jobs.request_cancel(job_id)

    async def to_follow(self, job_id: str, *, key_id: str | None = None) -> Job:
        """Return a job that someone wants to follow; raises JobNotFound as `get` does.

        All who begin at the same moment share one look: hundreds of them would wait for connections longer than
        they may.
        """
        look = self._looking.get(job_id)
        if look is None:
            look = self._looking[job_id] = asyncio.ensure_future(self._database.jobs.get(job_id))
            look.add_done_callback(lambda done: self._looked(job_id, done))
        return _shown(await asyncio.shield(look), key_id)

    async def events(self, job: Job, after_id: int = 0) -> AsyncIterator[JobEvent]:
        """Yield what happened to a job after the event `after_id`, then what happens, until it is finished.

        Ends earlier where this process does: another one goes on after the last event that was seen.
        Raises DatabaseUnavailable when stored events cannot be read.
        """
        seen_id = after_id
        with self._followed(job.job_id, after_id) as feed:
            while not self._is_ending:
                changed = feed.changed
                events = feed.events_after(seen_id)
                if events is None or job.is_finished:
                    events = await self._read(job.job_id, seen_id)
                for event in events:
                    seen_id = event.id
                    yield event
                    if _is_last(event):
                        return
                if events:
                    continue
                if job.is_finished:
                    return
                await changed.wait()

    def end_streams(self) -> None:
        """Let all who follow a job go, and nobody follow any more: this process ends."""
        self._is_ending = True
        for feed in self._feeds.values():
            feed.wake()

    def _looked(self, job_id: str, done: asyncio.Future[Job]) -> None:
        del self._looking[job_id]
        if not done.cancelled():
            done.exception()  # Taken note of, should nobody wait any more.

    async def _read(self, job_id: str, after_id: int) -> tuple[JobEvent, ...]:
        async with self._turn:
            return await self._database.jobs.events_after(job_id, after_id, READ_LIMIT)

    @contextmanager
    def _followed(self, job_id: str, after_id: int) -> Iterator[_Feed]:
        """Yield the feed of a job, which is read for as long as anyone follows it."""
        feed = self._feeds.get(job_id)
        if feed is None:
            feed = self._feeds[job_id] = _Feed(after_id)
            feed.reader = asyncio.create_task(self._keep_reading(job_id, feed), name=f"events of job {job_id}")
        feed.followers += 1
        try:
            yield feed
        finally:
            feed.followers -= 1
            if feed.followers == 0 and feed.reader is not None:
                del self._feeds[job_id]
                feed.reader.cancel()

    async def _keep_reading(self, job_id: str, feed: _Feed) -> None:
        with self._database.job_changes.watch(job_id) as watch:
            while True:
                try:
                    while events := await self._read(job_id, feed.last_id):
                        feed.add(events)
                except DatabaseUnavailable as error:
                    log.warning("database unavailable", doing="following a job", job_id=job_id, error=error.detail)
                await watch.wait(timeout_seconds=POLL_SECONDS)


class _Feed:
    """The latest events of one job, for all who follow it."""

    def __init__(self, after_id: int) -> None:
        self.followers = 0
        self.reader: asyncio.Task[None] | None = None
        self.last_id = after_id
        self.changed = asyncio.Event()
        """Set when there is more, and replaced by a new one."""
        self._complete_after_id = after_id
        self._latest: deque[JobEvent] = deque()

    def add(self, events: tuple[JobEvent, ...]) -> None:
        """Take further events and wake the followers."""
        self._latest.extend(events)
        self.last_id = events[-1].id
        while len(self._latest) > EVENTS_KEPT:
            self._complete_after_id = self._latest.popleft().id
        self.wake()

    def wake(self) -> None:
        """Let every follower look again."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def events_after(self, event_id: int) -> tuple[JobEvent, ...] | None:
        """Return what followed an event; None if that is no longer, or was never, all here."""
        if event_id < self._complete_after_id:
            return None
        return tuple(event for event in self._latest if event.id > event_id)


def _shown(job: Job, key_id: str | None) -> Job:
    """Return a job that a key may see; raises JobNotFound."""
    if key_id is not None and job.key_id != key_id:
        raise JobNotFound(job.job_id)
    return job


def _is_last(event: JobEvent) -> bool:
    return event.kind == "state" and event.data.get("state") in FINAL_STATES
