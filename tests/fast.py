"""Which tests answer in a minute: those that need no torch, no database, no browser and no process of their own.

`pytest --fast` collects these alone, and fails what loads something heavy all the same.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

LEFT_OUT = frozenset(
    TESTS / path
    for path in (
        # A service or a process runs, or a browser.
        "api",
        "cli",
        "deploy",
        "docs",
        "faults",
        "fuzz",
        "migrations",
        "web",
        "plimsoll/client",
        "service/access",
        "service/ground/test_database_address.py",
        "service/ground/test_settings.py",
        "service/jobs",
        "service/observability",
        "service/persistence",
        "service/queue",
        "service/running",
        "service/requests/test_examples.py",
        "service/test_backup.py",
        # Many questions, or long ones.
        "benchmarks",
        "properties",
        "service/admission",
        "service/artifacts",
        "service/plans",
        # torch, and what is built of it.
        "planners/families",
        "planners/jobs/test_partitions.py",
        "planners/jobs/test_pipeline_layouts_of_deepspeed.py",
        "planners/jobs/test_pipeline_layouts_of_megatron.py",
        "planners/jobs/test_pipeline_layouts_of_torchtitan.py",
        "planners/memory/test_adapters_of_peft.py",
        "planners/sharding/test_cuts.py",
        "service/checkpoints",
        "service/engines/transformers",
        "service/launch",
        "service/stacks",
        "service/worker",
    )
)
"""Folders and modules that are no fast tests, not even imported."""

HEAVY = ("torch", "transformers", "psycopg", "sqlalchemy", "fastapi")
"""What no fast test loads: each takes seconds, or is of no use without a running service."""


class FastTests:
    """Collects the fast tests alone, and holds them to it."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Skip the folders and modules that are left out, before anything is imported of them."""
        return True if collection_path in LEFT_OUT else None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect what is marked slow or asks for PostgreSQL, by whatever fixture."""
        left_out = [item for item in items if _is_slow(item)]
        items[:] = [item for item in items if not _is_slow(item)]
        config.hook.pytest_deselected(items=left_out)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Fail the module whose import loads something heavy."""
        report: pytest.CollectReport = yield
        if report.passed and (loaded := self._newly_loaded()):
            report.outcome, report.longrepr = "failed", f"{collector.nodeid} loads {loaded}: it is no fast test"
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """Fail the test in which something heavy was loaded."""
        yield
        if loaded := self._newly_loaded():
            pytest.fail(f"{item.nodeid} loads {loaded}: it is no fast test", pytrace=False)

    def _newly_loaded(self) -> str:
        loaded = {name for name in HEAVY if name in sys.modules} - self._known
        self._known |= loaded
        return ", ".join(sorted(loaded))


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None or "postgres" in getattr(item, "fixturenames", ())
