"""The API killed with -9 under load: nothing that was accepted is lost, nothing is done twice."""

from __future__ import annotations

import httpx
import pytest

from tests.faults.books import is_settled, settle
from tests.faults.load import loaded
from tests.faults.processes import Parts, address, is_ready, wait_for

CLIENTS = 4


def run_with_kills(parts: Parts, *, jobs: int, kills: int) -> None:
    parts.worker(concurrency=2, job_max_attempts=3)
    api = parts.api()
    wait_for(lambda: is_ready(api), lambda: api.log)
    with loaded(address(api), clients=CLIENTS, jobs=jobs) as (load, accepted):
        # Early enough that clients still want something after the last one, however late this thread gets its turn.
        for kill in range(1, kills + 1):
            wait_for(lambda kill=kill: len(accepted.jobs) >= kill * jobs // (3 * kills) or load.errors, lambda: api.log)
            api.kill()
            api.start()
        wait_for(load.is_done, lambda: api.log)
    assert load.errors == []
    # Each kill met requests that were under way, or the next ones found nobody there.
    assert accepted.refusals
    wait_for(lambda: is_settled(parts.database_url))
    books = settle(parts.database_url, accepted)
    print(f"API killed {kills} times: {books}; {len(accepted.plans)} plans")
    assert books.wrong == []
    assert len(accepted.jobs) == jobs
    for plan_id, body in accepted.plans.items():
        assert httpx.get(f"{address(api)}/plans/{plan_id}", trust_env=False, timeout=60).content == body


def test_an_api_killed_under_load(parts: Parts):
    run_with_kills(parts, jobs=30, kills=1)


@pytest.mark.faults
def test_an_api_killed_under_load_again_and_again(parts: Parts):
    run_with_kills(parts, jobs=120, kills=5)
