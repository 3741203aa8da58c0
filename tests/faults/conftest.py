"""Processes for one test, killed after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from plimsoll.service.persistence.upgrade import upgrade
from plimsoll.service.running.postgres.embedded import EmbeddedPostgres
from tests.faults.processes import Parts


@pytest.fixture
def parts(database_url: str, tmp_path: Path) -> Iterator[Parts]:
    """Return the processes of a test on a database of its own."""
    running = Parts(tmp_path, database_url)
    yield running
    running.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """Return a server with every table, to be killed or filled up; it keeps what it has committed, as a real one."""
    with EmbeddedPostgres(tmp_path / "own") as server:
        upgrade(server.url)
        yield server


@pytest.fixture
def own_parts(own_server: EmbeddedPostgres, tmp_path: Path) -> Iterator[Parts]:
    """Return the processes of a test on a server of its own."""
    running = Parts(tmp_path, own_server.url)
    yield running
    running.stop()
