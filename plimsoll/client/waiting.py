"""How long clients wait."""

from __future__ import annotations

import time

from plimsoll.client.errors import ClientError
from plimsoll.service.jobs.answers import JobBody
from plimsoll.service.persistence.records import FINAL_STATES

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_TIMEOUT_SECONDS = 60.0
"""Twice what a service takes for a request unless it is told otherwise."""
DEFAULT_POLL_SECONDS = 0.5


class JobUnfinished(ClientError):
    """A job did not end in time; it goes on, and can be asked for again."""


class JobWait:
    """The wait for one job."""

    def __init__(self, job_id: str, *, timeout_seconds: float | None) -> None:
        self._job_id = job_id
        self._timeout_seconds = timeout_seconds
        self._started = time.monotonic()

    def is_over(self, job: JobBody) -> bool:
        """Return whether the job is finished; raises JobUnfinished when the time is up."""
        if job.state in FINAL_STATES:
            return True
        if self._timeout_seconds is not None and time.monotonic() - self._started >= self._timeout_seconds:
            raise JobUnfinished(f"Job {self._job_id} is still {job.state}; is a worker running?")
        return False
