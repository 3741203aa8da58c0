"""The database's disk is full, and has room again.

Without root, a limit on the size of Postgres' files is the full disk: Postgres ignores SIGXFSZ, so that a
write beyond the limit fails as one on a full disk does. As root, a small tmpfs is filled for real.
"""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from plimsoll.service.ground.database_address import libpq_url
from plimsoll.service.persistence.upgrade import upgrade
from plimsoll.service.running.postgres.embedded import EmbeddedPostgres
from tests.faults.books import is_settled, settle
from tests.faults.load import loaded
from tests.faults.processes import Parts, address, is_ready, wait_for

# A segment of the log is never larger, and is made whole: at this limit tables can grow no further, and the log can.
LIMIT_BYTES = 16 * 2**20
TMPFS_BYTES = 160 * 2**20
FULL_SECONDS = 10.0
# So many rows of events make the table's file larger than the limit.
FILLER_ROWS = 40_000
MORE_JOBS_THAN_FIT = 100_000
_FILL = """
    INSERT INTO job_events (job_id, kind, data)
    SELECT job_id, 'progress', jsonb_build_object('filler', repeat('x', 500))
    FROM jobs, generate_series(1, %s) WHERE job_id = (SELECT min(job_id) FROM jobs)
"""


def limit_file_sizes(server: EmbeddedPostgres, limit: int) -> None:
    """Limit the files of the postmaster and of each of its processes; infinity lifts the limit.

    Under root it may run as `nobody`, and whose limits are another account's takes CAP_SYS_RESOURCE to change.
    """
    postmaster = psutil.Process(server.process_id)
    for process in (postmaster, *postmaster.children()):
        try:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        except ProcessLookupError:
            continue
        except PermissionError:
            pytest.skip("the limits of another account's processes may not be changed here")


def test_tables_that_cannot_grow_for_a_while(own_server: EmbeddedPostgres, own_parts: Parts):
    worker = own_parts.worker(concurrency=2)
    api = own_parts.api()
    wait_for(lambda: is_ready(api), lambda: api.log)
    # More jobs than can be sent before the tables are full; what is refused then is sent again, and the rest never.
    with loaded(address(api), clients=3, jobs=MORE_JOBS_THAN_FIT) as (load, accepted):
        wait_for(lambda: len(accepted.jobs) >= 5 or load.errors, lambda: api.log)
        with psycopg.connect(libpq_url(own_parts.database_url), autocommit=True) as connection:
            connection.execute(_FILL, (FILLER_ROWS,))
        limit_file_sizes(own_server, LIMIT_BYTES)
        wait_for(lambda: accepted.refusals or load.errors, lambda: api.log)
        time.sleep(FULL_SECONDS)
        limit_file_sizes(own_server, resource.RLIM_INFINITY)
        load.stop()
    assert load.errors == []
    wait_for(lambda: is_settled(own_parts.database_url), lambda: worker.log)
    books = settle(own_parts.database_url, accepted)
    print(f"tables full for {FULL_SECONDS:g} s: {books}; {accepted.refusals} requests refused")
    assert books.wrong == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "plimsoll-faults", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here: that takes root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)  # noqa: S607


@pytest.mark.faults
def test_a_disk_that_is_full_for_a_while(small_disk: Path, tmp_path: Path):
    with EmbeddedPostgres(small_disk / "own") as server:
        upgrade(server.url)
        parts = Parts(tmp_path, server.url)
        worker = parts.worker(concurrency=2)
        api = parts.api()
        try:
            wait_for(lambda: is_ready(api), lambda: api.log)
            with loaded(address(api), clients=3, jobs=60) as (load, accepted):
                wait_for(lambda: len(accepted.jobs) >= 10 or load.errors, lambda: api.log)
                filler = small_disk / "filler"
                with filler.open("wb") as file:
                    fill_up(file.fileno())
                # The log needs a new segment, which there is no room for: Postgres stops until there is.
                wait_for(lambda: not has_room_for_a_segment(server), lambda: api.log)
                time.sleep(FULL_SECONDS)
                filler.unlink()
                if server.process_id is None:
                    server.start()
                wait_for(lambda: is_ready(api), lambda: api.log)
                wait_for(load.is_done, lambda: api.log)
            assert load.errors == []
            wait_for(lambda: is_settled(parts.database_url), lambda: worker.log)
            books = settle(parts.database_url, accepted)
            print(f"disk full for {FULL_SECONDS:g} s: {books}; {accepted.refusals} requests refused")
            assert books.wrong == []
        finally:
            parts.stop()


def fill_up(descriptor: int) -> None:
    """Write until there is no room."""
    block = bytes(2**20)
    try:
        while True:
            os.write(descriptor, block)
    except OSError:
        return


def has_room_for_a_segment(server: EmbeddedPostgres) -> bool:
    """Return whether Postgres can still write; it is made to begin a new segment of its log."""
    try:
        with psycopg.connect(server.conninfo, autocommit=True, connect_timeout=5) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS filler (t text)")
            connection.execute(
                "INSERT INTO filler SELECT repeat(md5(random()::text), 1000) FROM generate_series(1, 500)"
            )
            connection.execute("SELECT pg_switch_wal()")
    except psycopg.Error:
        return False
    return True
