"""One attempt at one job: begin it, run its task in a child, tell how far it is, end it.

Everything is written under the attempt's token. An attempt that lost its job
(the worker was paused and taken for dead) notices at its next word and ends its
child without writing anything.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import structlog

from plimsoll.service.ground.errors import DatabaseUnavailable, JobNotFound, Unstorable
from plimsoll.service.persistence.jobs import JobStore
from plimsoll.service.persistence.records import Attempt, FinalState, Job, Progress
from plimsoll.service.queue.engine import AttemptCrashed, HandedBack
from plimsoll.service.queue.fencing import pause
from plimsoll.service.worker.processes.child import ChildError, ChildLimits, ChildOutcome, ChildProgress, run_child

REPORT_INTERVAL_SECONDS = 0.25
"""Progress is written four times a second at most."""
LOOK_INTERVAL_SECONDS = 0.5
"""How soon a cancelled job is noticed when there is no progress to report."""
FIRST_RETRY_SECONDS = 0.5
LONGEST_RETRY_SECONDS = 10.0

Answer = TypeVar("Answer")
log = structlog.get_logger(__name__)


class Stop(Enum):
    """Why a child was ended before it was done."""

    CANCELLED = "someone cancelled the job"
    LOST = "another attempt has the job, or its row is gone"
    SHUTDOWN = "the worker is told to stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRunner:
    """Runs attempts for one worker."""

    jobs: JobStore
    worker: str
    tasks: Mapping[str, str]
    """Kind of job -> "module:function"."""
    memory_bytes: int
    timeout_seconds: float
    on_result: Callable[[Job, Mapping[str, Any]], Awaitable[None]]
    """Called with each result before it is stored; more than once should a worker die in between."""
    on_no_result: Callable[[Job], Awaitable[None]]
    """Called once a job has ended as failed or cancelled, to clear away what its child left."""

    async def run(self, job_id: str) -> None:
        """Make an attempt at a job; on return there is nothing left to do for it.

        Being cancelled is the sign to stop, and is answered within seconds by
        handing the job back. Raises HandedBack, and AttemptCrashed when the
        job should be begun once more.
        """
        shutdown = asyncio.Event()
        work = asyncio.ensure_future(self._run(job_id, shutdown))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            shutdown.set()
            await work

    async def _run(self, job_id: str, shutdown: asyncio.Event) -> None:
        try:
            await _RunningAttempt(self, job_id, shutdown).run()
        except (HandedBack, AttemptCrashed):
            raise
        except Exception as error:
            # Whatever went wrong here cost an attempt, and the job has only so many.
            log.exception("attempt broke off", job_id=job_id, worker=self.worker)
            raise AttemptCrashed(str(error)) from error

    def limits(self) -> ChildLimits:
        """Return what a job's child may use.

        Where the system counts data (Linux since 4.7), that is what is limited. Address space
        is no measure of memory: CUDA reserves the whole card's, each thread an arena of 64 MiB,
        and a checkpoint is mapped whole to read one tensor.
        """
        return ChildLimits(
            memory_bytes=self.memory_bytes,
            seconds=self.timeout_seconds,
            limit_address_space=sys.platform != "linux",
        )


class _RunningAttempt:
    """The state of one attempt while it lasts."""

    def __init__(self, runner: AttemptRunner, job_id: str, shutdown: asyncio.Event) -> None:
        self._runner = runner
        self._jobs = runner.jobs
        self._job_id = job_id
        self._shutdown = shutdown
        self._stop = asyncio.Event()
        self._stop_reason: Stop | None = None
        self._progress: Progress | None = None
        self._written: Progress | None = None
        self._log = log.bind(job_id=job_id, worker=runner.worker)

    async def run(self) -> None:
        try:
            attempt = await self._persistently(lambda: self._jobs.begin_attempt(self._job_id, self._runner.worker))
        except JobNotFound:
            self._log.warning("job gone", reason="its row was deleted")
            return
        if attempt is None:
            self._log.info("job needs no attempt", reason="finished, cancelled or begun as often as it may be")
            return
        self._log = self._log.bind(kind=attempt.job.kind, plan_id=attempt.job.plan_id, attempt=attempt.job.attempts)
        self._log.info("job begun")
        outcome = await self._outcome(attempt)
        self._log.info(
            "job's child ended",
            outcome=outcome.kind,
            stopped=self._stop_reason and self._stop_reason.value,
            seconds=round(outcome.seconds, 3),
            peak_host_bytes=outcome.peak_host_bytes,
            error=outcome.error and outcome.error.detail,
        )
        await self._conclude(attempt, outcome)

    async def _outcome(self, attempt: Attempt) -> ChildOutcome:
        target = self._runner.tasks.get(attempt.job.kind)
        if target is None:
            detail = f"This worker knows no task for jobs of kind {attempt.job.kind!r}."
            error = ChildError(code="unknown-kind", detail=detail, log="")
            return ChildOutcome(kind="failed", error=error, peak_host_bytes=0, seconds=0.0)
        request = {**attempt.job.request}
        side_tasks = [asyncio.ensure_future(self._watch(attempt)), asyncio.ensure_future(self._watch_shutdown())]
        try:
            return await run_child(
                target,
                request,
                limits=self._runner.limits(),
                on_progress=self._take_progress,
                stop=self._stop,
                goes_on_elsewhere=lambda: self._stop_reason is not Stop.CANCELLED,
            )
        finally:
            for task in side_tasks:
                task.cancel()
            await asyncio.gather(*side_tasks, return_exceptions=True)

    def _take_progress(self, progress: ChildProgress) -> None:
        self._progress = Progress(
            done=progress.done, total=progress.total, unit=progress.unit, message=progress.message
        )

    def _end_child(self, reason: Stop) -> None:
        self._stop_reason = self._stop_reason or reason
        self._stop.set()

    async def _watch_shutdown(self) -> None:
        await self._shutdown.wait()
        self._end_child(Stop.SHUTDOWN)

    async def _watch(self, attempt: Attempt) -> None:
        """Write the progress down, and end the child once the job is cancelled or lost."""
        loop = asyncio.get_running_loop()
        look_at = loop.time() + LOOK_INTERVAL_SECONDS
        while not self._stop.is_set():
            await asyncio.sleep(REPORT_INTERVAL_SECONDS)
            if self._progress is self._written and loop.time() < look_at:
                continue
            look_at = loop.time() + LOOK_INTERVAL_SECONDS
            try:
                await self._tell_or_look(attempt)
            except JobNotFound:
                self._end_child(Stop.LOST)
            except (DatabaseUnavailable, Unstorable) as error:
                self._log.warning("progress not written", error=error.detail)

    async def _tell_or_look(self, attempt: Attempt) -> None:
        progress = self._progress
        if progress is not None and progress is not self._written:
            reply = await self._jobs.report_progress(self._job_id, attempt.token, progress)
            self._written = progress
            is_ours, is_cancelled = reply.still_owner, reply.cancel_requested
        else:
            job = await self._jobs.get(self._job_id)
            # Each attempt has a number of its own, so the number tells whose the job is.
            is_ours = job.state == "running" and job.attempts == attempt.job.attempts
            is_cancelled = job.cancel_requested
        if not is_ours:
            self._end_child(Stop.LOST)
        elif is_cancelled:
            self._end_child(Stop.CANCELLED)

    async def _conclude(self, attempt: Attempt, outcome: ChildOutcome) -> None:
        match outcome.kind, self._stop_reason:
            case "succeeded", _:
                await self._succeed(attempt, outcome)
            case "cancelled", Stop.SHUTDOWN:
                if await self._persistently(lambda: self._jobs.release(self._job_id, attempt.token)):
                    self._log.info("job handed back")
                raise HandedBack
            case "cancelled", Stop.LOST:
                self._log.warning("job lost", reason=Stop.LOST.value)
            case "cancelled", _:
                await self._finish(attempt, "cancelled")
            case "crashed", _ if attempt.job.attempts < attempt.job.max_attempts:
                self._log.warning("job will be begun once more", error=outcome.error and outcome.error.detail)
                raise AttemptCrashed(outcome.error and outcome.error.detail)
            case _:
                await self._finish(attempt, "failed", error=_stored_error(attempt, outcome))

    async def _succeed(self, attempt: Attempt, outcome: ChildOutcome) -> None:
        if (last := self._progress) is not None and last is not self._written:
            await self._persistently(lambda: self._jobs.report_progress(self._job_id, attempt.token, last))
        result = outcome.result or {}
        try:
            await self._persistently(lambda: self._runner.on_result(attempt.job, result))
            await self._finish(attempt, "succeeded", result=result)
        except Unstorable as error:
            detail = f"The result cannot be stored. {error.detail}"
            await self._finish(attempt, "failed", error={"code": "invalid-result", "detail": detail})

    async def _finish(
        self,
        attempt: Attempt,
        state: FinalState,
        *,
        result: Mapping[str, Any] | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> None:
        was_ours = await self._persistently(
            lambda: self._jobs.finish(self._job_id, attempt.token, state, result=result, error=error)
        )
        if was_ours:
            self._log.info("job finished", state=state)
            if state != "succeeded":
                await self._clear(attempt.job)
        else:
            self._log.warning("result refused", reason=Stop.LOST.value, state=state)

    async def _clear(self, job: Job) -> None:
        try:
            await self._runner.on_no_result(job)
        except OSError as error:
            self._log.warning("leftovers not cleared", error=str(error))

    async def _persistently(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the store's answer, asking again while the database is away.

        Raises HandedBack when the worker is told to stop meanwhile: the queue
        recovers the job from it as from a dead worker.
        """
        wait_seconds = FIRST_RETRY_SECONDS
        while True:
            try:
                return await ask()
            except DatabaseUnavailable as error:
                self._log.warning("database unavailable", doing="writing a job", error=error.detail)
                if self._shutdown.is_set():
                    raise HandedBack from error
                await pause(self._shutdown, wait_seconds)
                wait_seconds = min(2 * wait_seconds, LONGEST_RETRY_SECONDS)


def _stored_error(attempt: Attempt, outcome: ChildOutcome) -> dict[str, Any]:
    error = outcome.error or ChildError(code="task-failed", detail="The task failed.", log="")
    return {
        "code": error.code,
        "detail": error.detail,
        "log": error.log,
        "attempts": attempt.job.attempts,
        "seconds": outcome.seconds,
        "peak_host_bytes": outcome.peak_host_bytes,
    }
