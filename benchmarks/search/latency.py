"""`POST /plan/train` asked of the application on a real database, without a network between."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.search.cases import Case
from plimsoll.api.app import create_app
from plimsoll.service.ground.settings import Settings
from plimsoll.service.persistence.upgrade import upgrade
from plimsoll.service.running.postgres.embedded import EmbeddedPostgres

# The first request of a process reads profiles and efficiencies and describes the model.
WARMING_REQUESTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds of whole requests, and the search's share as the answers give it: planning without what surrounds it."""

    median_seconds: float
    fastest_seconds: float
    planning_seconds: float


async def latencies(cases: Sequence[Case], repetitions: int) -> dict[Case, Latency]:
    """Return the latency of every case, one request after the other, each a question not yet answered."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder)) as server:
        upgrade(server.url)
        app = create_app(Settings(database_url=server.url))
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60.0) as client,
        ):
            return {case: await _latency(client, case, repetitions) for case in cases}


async def _latency(client: httpx.AsyncClient, case: Case, repetitions: int) -> Latency:
    walls, planning = [], []
    for number in range(WARMING_REQUESTS + repetitions):
        began = time.perf_counter()
        response = await client.post("/plan/train", json=case.request(number))
        walls.append(time.perf_counter() - began)
        response.raise_for_status()
        planning.append(response.json()["search"]["seconds"])
    return Latency(
        median_seconds=statistics.median(walls[WARMING_REQUESTS:]),
        fastest_seconds=min(walls[WARMING_REQUESTS:]),
        planning_seconds=statistics.median(planning[WARMING_REQUESTS:]),
    )
