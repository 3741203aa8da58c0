"""Which process runs which tests: those of a file together, for what one made the next one finds, and long files first.

xdist looks through all that a process was given whenever one of its tests ends: of files that takes nothing, of
thousands of single tests it takes longer than many of the tests.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadGroupScheduling

LONG = (
    "tests/faults/",
    "tests/service/running/",
    "tests/service/worker/",
    "tests/docs/",
    "tests/planners/families/",
    "tests/api/",
    "tests/properties/",
)
"""Folders whose files take longest, in the order in which they begin, so that no process has one left at the end."""


def long_first(items: list[pytest.Item]) -> None:
    """Sort tests by when they begin."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    return next((place for place, folder in enumerate(LONG) if item.nodeid.startswith(folder)), len(LONG))


class FilesTogether(LoadGroupScheduling):  # type: ignore[misc]
    """Gives each process whole files, but for tests of a group, in the order of the collection."""

    def _split_scope(self, nodeid: str) -> str:
        """Return a test's group, or its file."""
        scope: str = super()._split_scope(nodeid)
        return scope.partition("::")[0]
