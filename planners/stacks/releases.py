"""Releases of training stacks: how they are spelled, which one is planned for, and what a file says of each.

A `stack.toml` says what its newest release does. Its list `releases`, oldest first, says which others are known and
what of the file is otherwise in each: tables are merged as those of a stack over what it inherits (`folders.py`), and
one of `variants` holds over the file's own of the same kernels. Releases that differ in nothing that is planned stand
in one entry. They are spelled as the program itself numbers them, and by months before it did.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plimsoll.planners.ground.data_files import overlaid
from plimsoll.planners.ground.errors import UnknownVersion

# Between the first and the last of a row of months, or of numbers that differ in their last part.
ROW = " to "
MONTHS_PER_YEAR = 12
MONTH = re.compile(r"(\d{4})-(\d{2})", re.ASCII)
NUMBER = re.compile(r"\d{1,9}", re.ASCII)
LAST_PART = re.compile(r"[.-][^.-]*$")
# How far the bounds of a release's memory go beyond those of its stack where no run of it is known. Of the same
# settings torchtitan reserved 1.19 and 1.30 times as much as a few months later; what its source says of such steps is
# planned, and what it leaves open is taken to be as large as the smaller of them.
UNKNOWN_RUNS_SPREAD = 1.19


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The release that a stack is planned in.

    `version` is of `program`; `alike` are the first and the last of those that are planned alike, `source` is whose
    code says so. `has_runs` marks releases of which a measured run is on record, `is_newest` those that are planned
    unless another is asked for.
    """

    program: str
    version: str
    alike: tuple[str, str]
    source: str
    has_runs: bool
    is_newest: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseEntry:
    """One entry of a stack's list: its versions, oldest first, and what of the stack's file it changes."""

    versions: tuple[str, ...]
    source: str
    has_runs: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)

    def applied(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return a stack's table as it is of these releases, but for its variants."""
        return overlaid(table, {key: value for key, value in self.changes.items() if key != "variants"})

    def variant(self, kernels: str) -> Mapping[str, Any]:
        """Return what of a variant is otherwise in these releases."""
        found: Mapping[str, Any] = self.changes.get("variants", {}).get(kernels, {})
        return found


def release_entries(table: Mapping[str, Any]) -> tuple[ReleaseEntry, ...]:
    """Return the releases that a stack's table tells apart, oldest first; none where it names none."""
    return tuple(_entry(entry) for entry in table.get("releases", ()))


def known_versions(entries: Sequence[ReleaseEntry]) -> tuple[str, ...]:
    """Return every version that a stack is planned in, oldest first."""
    return tuple(version for entry in entries for version in entry.versions)


def known_version(program: str, entries: Sequence[ReleaseEntry], asked: str) -> str:
    """Return the listed version that is meant: itself, that of its patches, or the newest of what it abbreviates.

    Raises `UnknownVersion`, with the nearest, where none is.
    """
    known = known_versions(entries)
    wanted = asked.strip().lower().removeprefix("v").partition("+")[0]
    begun = [version for version in known if version.startswith((f"{wanted}.", f"{wanted}-"))] if wanted else []
    if wanted not in known and begun:
        return begun[-1]
    shorter = wanted
    while shorter not in known:
        cut = LAST_PART.sub("", shorter)
        if cut == shorter:
            raise UnknownVersion(asked, program=program, nearest=nearest_versions(known, wanted))
        shorter = cut
    return shorter


def nearest_versions(known: Sequence[str], asked: str) -> tuple[str, ...]:
    """Return the known versions before and behind one, by number or by month, and the newest of all."""
    if NUMBER.search(asked) is None:
        return tuple(known[-1:])
    alike = sorted((each for each in known if _is_month(each) == _is_month(asked)), key=_order)
    place = bisect.bisect([_order(each) for each in alike], _order(asked))
    return tuple(dict.fromkeys((*alike[max(place - 1, 0) : place + 1], *known[-1:])))


def release_in(
    program: str, entries: Sequence[ReleaseEntry], version: str | None
) -> tuple[ReleaseEntry, Release] | None:
    """Return the entry of a version, by default the newest, and the release that it makes; None where none is known.

    Raises `UnknownVersion` for one that is not listed.
    """
    if not entries:
        if version is not None:
            raise UnknownVersion(version, program=program, nearest=())
        return None
    listed = entries[-1].versions[-1] if version is None else known_version(program, entries, version)
    entry = next(each for each in entries if listed in each.versions)
    release = Release(
        program=program,
        version=listed,
        alike=(entry.versions[0], entry.versions[-1]),
        source=entry.source,
        has_runs=entry.has_runs,
        is_newest=entry is entries[-1],
    )
    return entry, release


def _entry(table: Mapping[str, Any]) -> ReleaseEntry:
    changes = dict(table)
    rows, source = changes.pop("versions"), changes.pop("source")
    return ReleaseEntry(
        versions=tuple(version for row in rows for version in _row(row)),
        source=source,
        has_runs=changes.pop("has_runs", False),
        changes=changes,
    )


def _row(text: str) -> Iterator[str]:
    """Yield the versions of a row: a single one, months, or numbers that count up in their last part."""
    first, _, last = text.partition(ROW)
    if not last:
        yield first
        return
    if _is_month(first):
        start, end = (int(year) * MONTHS_PER_YEAR + int(month) - 1 for year, month in (_month(first), _month(last)))
        yield from (f"{each // MONTHS_PER_YEAR}-{each % MONTHS_PER_YEAR + 1:02}" for each in range(start, end + 1))
        return
    head, lowest = first.rsplit(".", 1)
    yield from (f"{head}.{number}" for number in range(int(lowest), int(last.rsplit(".", 1)[1]) + 1))


def _is_month(version: str) -> bool:
    return MONTH.match(version) is not None


def _month(version: str) -> tuple[str, str]:
    year, month = version.split("-")[:2]
    return year, month


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in NUMBER.findall(version)[:4])
