"""Deleting plans, jobs and events that were kept for as long as the settings say."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import structlog

from plimsoll.service.ground.settings import Settings
from plimsoll.service.persistence.retention import ExpiredRows

log = structlog.get_logger(__name__)


class Retention:
    """Deletes what is older than the settings keep; jobs that are not finished stay whatever their age."""

    def __init__(self, expired: ExpiredRows, settings: Settings) -> None:
        # Jobs before plans: a plan stays for as long as a job rests on it.
        self._steps: tuple[tuple[str, int, Callable[[timedelta], Awaitable[int]]], ...] = (
            ("events", settings.keep_events_days, expired.delete_events),
            ("jobs", settings.keep_jobs_days, expired.delete_jobs),
            ("plans", settings.keep_plans_days, expired.delete_plans),
        )

    async def delete_expired(self) -> None:
        """Delete it all; what a lost database leaves undone is done the next time."""
        deleted = {name: await delete(timedelta(days=days)) for name, days, delete in self._steps if days}
        log.info("expired rows deleted", **deleted)
