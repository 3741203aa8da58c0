"""The network between the service and its database is cut, or swallows everything, and is healed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from tests.faults.books import is_settled, settle
from tests.faults.load import loaded
from tests.faults.processes import Parts, address, is_ready, wait_for
from tests.faults.proxy import Condition, Proxy, proxied

AWAY_SECONDS = 20.0


def socket_of(database_url: str) -> str:
    return str(Path(str(make_url(database_url).query["host"])) / ".s.PGSQL.5432")


def through(proxy: Proxy, database_url: str) -> str:
    """Return the address of a database by way of the proxy."""
    url = make_url(database_url)
    return f"postgresql://{url.username}@127.0.0.1:{proxy.port}/{url.database}"


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    with proxied(socket_of(database_url)) as running:
        yield running


def run_with_a_fault(parts: Parts, proxy: Proxy, condition: Condition, *, jobs: int, seconds: float) -> None:
    far = through(proxy, parts.database_url)
    worker = parts.worker(concurrency=2, url=far)
    api = parts.api(url=far)
    wait_for(lambda: is_ready(api), lambda: api.log)
    with loaded(address(api), clients=3, jobs=jobs) as (load, accepted):
        wait_for(lambda: len(accepted.jobs) >= jobs // 4 or load.errors, lambda: api.log)
        proxy.set(condition)
        time.sleep(seconds)
        proxy.set("up")
        healed_at = time.monotonic()
        wait_for(lambda: is_ready(api), lambda: api.log)
        ready_seconds = time.monotonic() - healed_at
        wait_for(load.is_done, lambda: api.log)
    assert load.errors == []
    wait_for(lambda: is_settled(parts.database_url), lambda: worker.log)
    books = settle(parts.database_url, accepted)
    print(f"network {condition} for {seconds:g} s: {books}; ready {ready_seconds:.1f} s after it was healed")
    assert books.wrong == []


def test_a_network_that_is_cut_and_healed(parts: Parts, proxy: Proxy):
    run_with_a_fault(parts, proxy, "cut", jobs=16, seconds=5)


@pytest.mark.faults
@pytest.mark.parametrize("condition", ["cut", "silent"])
def test_a_network_that_is_away_for_long(parts: Parts, proxy: Proxy, condition: Condition):
    run_with_a_fault(parts, proxy, condition, jobs=60, seconds=AWAY_SECONDS)
