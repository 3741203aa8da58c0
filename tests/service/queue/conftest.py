"""The queue of a test, and a job in it."""

from __future__ import annotations

import pytest

from plimsoll.service.persistence.records import NewJob
from tests.service.queue.queues import (
    opened,
)


@pytest.fixture
async def manager(database_url):
    async with opened(database_url) as (_, manager):
        yield manager


@pytest.fixture
async def job(database):
    new = NewJob(kind="quantize", queue="cpu", request={})
    return await database.jobs.submit(new, idempotency_key=None, route="/quantize")
