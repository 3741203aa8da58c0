"""The worker's process: what it can do, and how it lives.

It loads no torch: jobs run in child processes, and what accelerators there are
is asked of one. It ends when it is told to and for no other reason; a database
that is away is waited for.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg
import structlog
from procrastinate.exceptions import ConnectorException

from plimsoll.service.ground.errors import DatabaseUnavailable, JobNotFound
from plimsoll.service.ground.settings import PREFIX, Settings
from plimsoll.service.observability.logging import configure_logging
from plimsoll.service.observability.tracing import Tracer, tracer_to
from plimsoll.service.persistence.database import Database
from plimsoll.service.persistence.jobs import JobStore
from plimsoll.service.queue.engine import build_queue, hand_back_stalled_jobs, run_queue_worker
from plimsoll.service.queue.fencing import FencedJobManager, pause
from plimsoll.service.queue.heartbeats import Heartbeats
from plimsoll.service.queue.retention import Retention
from plimsoll.service.running.restarts import Restarts
from plimsoll.service.worker.processes.attempt import AttemptRunner
from plimsoll.service.worker.processes.child import ChildLimits, run_child
from plimsoll.service.worker.proofs.records import ProofRecord
from plimsoll.service.worker.quantization.leftovers import Leftovers
from plimsoll.service.worker.tasks import LIST_ACCELERATORS, TASKS

DETECTION_TIMEOUT_SECONDS = 120.0
"""Loading torch takes seconds, and a minute or more from a slow disk."""
GOOD_WHILE_SECONDS = 15.0

log = structlog.get_logger(__name__)


def run_worker(
    settings: Settings,
    queues: Sequence[str] | None = None,
    concurrency: int = 1,
    *,
    tasks: Mapping[str, str] = TASKS,
) -> None:
    """Work on jobs until SIGTERM or SIGINT, and hand the running ones back then.

    Without `queues` they are those of the settings, and without these what this
    machine can do: `cpu`, and with an accelerator `gpu` and `gpu:<kind>`.
    Raises DatabaseUnavailable where the settings name no database.
    """
    if settings.database_url is None:
        raise DatabaseUnavailable(f"A worker needs a database. Set {PREFIX}DATABASE_URL, or run `plimsoll serve`.")
    configure_logging(settings.log_level)
    asyncio.run(serve_jobs(settings, settings.database_url, queues, concurrency, tasks))


async def serve_jobs(
    settings: Settings, database_url: str, queues: Sequence[str] | None, concurrency: int, tasks: Mapping[str, str]
) -> None:
    """Do what `run_worker` says, in the running event loop of the main thread."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    name = f"{socket.gethostname()}-{os.getpid()}"
    served = tuple(queues or await _served_queues(settings, stopping))
    # Each running job reports and ends on a connection of its own at worst; one more for the sweep.
    database = Database(database_url, pool_size=concurrency + 1)
    tracer = tracer_to(settings.traces_url, service="plimsoll-worker")
    worker = _Worker(
        name=name,
        queues=served,
        concurrency=concurrency,
        settings=settings,
        database_url=database_url,
        jobs=database.jobs,
        retention=Retention(database.expired, settings),
        tracer=tracer,
        runner=AttemptRunner(
            jobs=database.jobs,
            worker=name,
            tasks=tasks,
            memory_bytes=settings.job_memory_bytes,
            timeout_seconds=settings.job_timeout_seconds,
            on_result=ProofRecord(database, source=name).add,
            on_no_result=Leftovers(output_roots=settings.output_roots).clear,
        ),
    )
    log.info("worker started", worker=name, queues=served, concurrency=concurrency)
    try:
        await worker.run(stopping)
    finally:
        await database.close()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)
        log.info("worker stopped", worker=name)


async def detected_queues(memory_bytes: int, stop: asyncio.Event | None = None) -> tuple[str, ...]:
    """Return the queues that this machine can serve, by what torch sees in a child process."""
    limits = ChildLimits(memory_bytes=memory_bytes, seconds=DETECTION_TIMEOUT_SECONDS, limit_address_space=False)
    outcome = await run_child(LIST_ACCELERATORS, {}, limits=limits, stop=stop)
    if outcome.result is None:
        log.warning("accelerators unknown", outcome=outcome.kind, error=outcome.error and outcome.error.detail)
        return ("cpu",)
    log.info("accelerators", **outcome.result)
    kinds = sorted({accelerator["kind"] for accelerator in outcome.result["accelerators"]})
    return ("cpu", "gpu", *(f"gpu:{kind}" for kind in kinds)) if kinds else ("cpu",)


async def _served_queues(settings: Settings, stop: asyncio.Event) -> tuple[str, ...]:
    if "worker_queues" in settings.model_fields_set:
        return settings.worker_queues
    return await detected_queues(settings.job_memory_bytes, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    """Keeps the queue's worker running, and sweeps up after other ones."""

    name: str
    queues: tuple[str, ...]
    concurrency: int
    settings: Settings
    database_url: str
    jobs: JobStore
    retention: Retention
    runner: AttemptRunner
    tracer: Tracer | None

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve until `stopping`, beginning anew whenever the queue's worker ends by itself."""
        restarts = Restarts(good_while_seconds=GOOD_WHILE_SECONDS)
        while not stopping.is_set():
            began_at = asyncio.get_running_loop().time()
            try:
                await self._serve(stopping)
            except Exception as error:
                # A worker that ends helps nobody: whatever it was, it is logged, and tried again.
                log.warning("queue worker ended", worker=self.name, error=_reason(error), exc_info=not _is_away(error))
            lived_seconds = asyncio.get_running_loop().time() - began_at
            await pause(stopping, restarts.pause_seconds(lived_seconds))

    async def _serve(self, stopping: asyncio.Event) -> None:
        queue, manager = build_queue(
            self.database_url,
            self.runner.run,
            concurrency=self.concurrency,
            delete_expired=self.retention.delete_expired,
            tracer=self.tracer,
        )
        try:
            await queue.open_async()
            work = asyncio.ensure_future(
                run_queue_worker(
                    queue,
                    name=self.name,
                    queues=self.queues,
                    concurrency=self.concurrency,
                    heartbeat_seconds=self.settings.heartbeat_seconds,
                )
            )
            sweeping = asyncio.ensure_future(self._sweep_for_ever(manager))
            told_to_stop = asyncio.ensure_future(stopping.wait())
            try:
                await asyncio.wait((work, told_to_stop), return_when=asyncio.FIRST_COMPLETED)
            finally:
                manager.stopping.set()
                for task in (work, sweeping, told_to_stop):
                    task.cancel()
                ends = await asyncio.gather(work, sweeping, told_to_stop, return_exceptions=True)
            if isinstance(ends[0], Exception):
                raise ends[0]
        finally:
            await queue.close_async()

    async def _sweep_for_ever(self, manager: FencedJobManager) -> None:
        heartbeats = Heartbeats(silent_after_seconds=self.settings.stalled_after_seconds)
        while True:
            lost_by: dict[str, str | None] = {}
            note = functools.partial(self._note_worker, lost_by)
            try:
                for job_id in await hand_back_stalled_jobs(manager, heartbeats, before=note):
                    self._log_recovery(job_id, lost_by[job_id])
            except (ConnectorException, DatabaseUnavailable) as error:
                log.warning("database unavailable", doing="looking for stalled jobs", error=_reason(error))
            await asyncio.sleep(self.settings.heartbeat_seconds)

    async def _note_worker(self, lost_by: dict[str, str | None], job_id: str) -> None:
        """Note whose a job is: once it is handed back it may be another's at once."""
        try:
            lost_by[job_id] = (await self.jobs.get(job_id)).worker
        except JobNotFound:
            lost_by[job_id] = None

    def _log_recovery(self, job_id: str, lost_by: str | None) -> None:
        log.warning(
            f"job {job_id} recovered: worker {lost_by} missed its heartbeat",
            job_id=job_id,
            lost_by=lost_by,
            recovered_by=self.name,
            stalled_after_seconds=self.settings.stalled_after_seconds,
        )


def _is_away(error: Exception) -> bool:
    """Return whether an error says no more than that the database cannot be reached."""
    return isinstance(error, (ConnectorException, DatabaseUnavailable, psycopg.OperationalError, OSError))


def _reason(error: Exception) -> str:
    return str(error.__cause__ or error).strip().partition("\n")[0] or type(error).__name__
