"""One PostgreSQL for the whole run, and an empty database for each test that asks for one.

With several test processes each has a server of its own: it starts in a second, and
nobody has to wait for anybody, or to be the last to leave. What needs the database, the API
or a worker is imported by the fixtures that need it: most tests are of planners and need none.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.fast import FastTests

if TYPE_CHECKING:
    from xdist.remote import Producer

    from plimsoll.service.persistence.database import Database
    from plimsoll.service.running.postgres.embedded import EmbeddedPostgres
    from tests.databases import Databases
    from tests.distribution import FilesTogether

# How long an example takes says more of the machine's other work than of the code.
hypothesis.settings.register_profile("plimsoll", deadline=None)
hypothesis.settings.load_profile("plimsoll")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer `--fast`."""
    parser.addoption("--fast", action="store_true", help="run only the tests that need no torch, database or process")


def pytest_configure(config: pytest.Config) -> None:
    """Leave out what is not fast where that is asked for, and let every process keep what it compiles."""
    if config.getoption("fast"):
        config.pluginmanager.register(FastTests())
    # The tests start hundreds of processes of the same modules: where the environment forbids bytecode, each would
    # compile them anew, and every run all the tests.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the long files begin where several processes share the tests."""
    if config.getoption("loadgroup", default=False):
        from tests.distribution import long_first

        long_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesTogether | None:
    """Give each process whole files, in the order of the collection."""
    if config.getoption("dist") != "loadgroup":
        return None
    from tests.distribution import FilesTogether

    config.option.loadscopereorder = False
    return FilesTogether(config, log)


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """Return the running server, which forgets everything with the machine."""
    from plimsoll.service.running.postgres.embedded import EmbeddedPostgres

    with (
        tempfile.TemporaryDirectory(prefix="plimsoll-tests-", ignore_cleanup_errors=True) as folder,
        EmbeddedPostgres(Path(folder) / "postgres", durable=False) as server,
    ):
        yield server


@pytest.fixture(scope="session")
def databases(postgres: EmbeddedPostgres) -> Databases:
    """Return the server's databases."""
    from tests.databases import Databases

    return Databases(postgres)


@pytest.fixture
def empty_database_url(databases: Databases) -> Iterator[str]:
    """Return the URL of a database without any table."""
    with databases.empty() as url:
        yield url


@pytest.fixture
def database_url(databases: Databases) -> Iterator[str]:
    """Return the URL of a database with every table and no row."""
    with databases.migrated() as url:
        yield url


@pytest.fixture(scope="module")
def module_database_url(databases: Databases) -> Iterator[str]:
    """Return the URL of a database with every table that the tests of one module share."""
    with databases.migrated() as url:
        yield url


@pytest.fixture(scope="module")
def service_url(module_database_url: str) -> Iterator[str]:
    """Return the URL of a service that the tests of one module share; no worker runs unless a test asks for one."""
    from plimsoll.service.ground.settings import Settings
    from tests.live_service import running_api

    with running_api(Settings(database_url=module_database_url)) as url:
        yield url


@pytest.fixture(scope="module")
def worker(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run a worker for the service of the module."""
    from tests.live_service import running_worker

    with running_worker(module_database_url, tmp_path_factory.mktemp("worker") / "log"):
        yield


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """Return an open database without any row."""
    from plimsoll.service.persistence.database import Database

    async with Database(database_url) as opened:
        yield opened
