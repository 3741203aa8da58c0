"""Clocks that jump while jobs run: the worker's and the API's, and the database's.

The jumps are libfaketime's (Debian package `libfaketime`), which every process here reads anew from a
file; without it these tests are skipped, and tests/service/test_queue.py moves the stamps themselves.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.embedded_postgres import EmbeddedPostgres
from service.persistence.upgrade import upgrade
from tests.faults.books import is_settled, settle
from tests.faults.load import loaded
from tests.faults.processes import Parts, address, is_ready, wait_for

LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
)
LIBRARY = next((library for library in LIBRARIES if Path(library).exists()), None)

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed"),
]


class FakeClock:
    """The clock of all processes that have its variables; monotonic clocks go on."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump("+0")
        self.variables = {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def jump(self, offset: str) -> None:
        """Set the clock off by so much, as "+1h" or "-1h"."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset}\n")
        new.rename(self._file)
        # The account that Postgres runs under reads it too.
        self._file.chmod(0o644)


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    # Postgres runs under an account of its own, which may not enter pytest's folders.
    folder = Path(f"/tmp/plimsoll-clock-{time.monotonic_ns()}")  # noqa: S108 - the name is nobody else's
    folder.mkdir(mode=0o755)
    yield FakeClock(folder / "clock")
    shutil.rmtree(folder)


def run_with_jumps(parts: Parts, clock: FakeClock, offset: str) -> None:
    worker = parts.worker(concurrency=2)
    api = parts.api()
    wait_for(lambda: is_ready(api), lambda: api.log)
    with loaded(address(api), clients=3, jobs=60) as (load, accepted):
        for jump in (offset, "+0"):
            wait_for(lambda: len(accepted.jobs) >= 15 or load.errors, lambda: api.log)
            clock.jump(jump)
            # The one that dies just now was last heard in a time to come, or long ago.
            worker.kill()
            worker.start()
        wait_for(load.is_done, lambda: api.log)
    assert load.errors == []
    wait_for(lambda: is_settled(parts.database_url), lambda: worker.log)
    books = settle(parts.database_url, accepted)
    print(f"clock jumps by {offset} and back: {books}")
    assert books.wrong == []


@pytest.mark.parametrize("offset", ["+1h", "-1h"])
def test_the_clock_of_api_and_worker_jumps(parts: Parts, clock: FakeClock, offset: str):
    parts.variables.update(clock.variables)
    run_with_jumps(parts, clock, offset)


@pytest.mark.parametrize("offset", ["+1h", "-1h"])
def test_the_databases_clock_jumps(tmp_path: Path, clock: FakeClock, offset: str):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in clock.variables.items():
            patch.setenv(name, value)
        server = EmbeddedPostgres(tmp_path / "own").start()
    try:
        upgrade(server.url)
        parts = Parts(tmp_path, server.url)
        try:
            run_with_jumps(parts, clock, offset)
        finally:
            parts.stop()
    finally:
        server.stop()
