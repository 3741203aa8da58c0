"""The measured memory rows as requests with a fixed layout, or the reason why a row cannot be asked about."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy.peak_memory.row_requests import CannotAsk, Row, nanotron_row, row_request
from plimsoll.planners.ground.errors import PlimsollError

DATA = Path(__file__).parents[2] / "data"
GIB = 2**30
MIB = 2**20
LONGEST_REASON = 90
# What a reading weighs: of a run that is known to all its settings (A), with few taken from defaults (B), or some
# guessed (C).
WEIGHTS = {"A": 1.0, "B": 0.5, "C": 0.25}
FIRST_RANK, LAST_STAGE = "rank 0", "last stage"
ALLOCATED, RESERVED, CARD, UNSTATED, NOTHING = "allocated", "reserved", "nvidia-smi", "unspecified", "none"
NANOTRON_SOURCE = "Ultra-Scale Playbook benchmarks_interactive.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCase:
    """One measured run: `measured_bytes` is None where only the outcome is known.

    `kind` says which figure was read: allocated, reserved, nvidia-smi (of the whole card), or unspecified; `place`
    whose it is, where that is not the worst rank's. `is_seen` says whether any constant of a profile was fitted to
    runs of its source.
    """

    case_id: str
    source: str
    stack: str
    request: Mapping[str, Any]
    measured_bytes: float | None
    kind: str
    place: str = ""
    ran: bool
    is_point: bool
    is_seen: bool
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """All rows that can be asked about, and how many cannot, by stack and reason."""

    cases: tuple[MemoryCase, ...]
    left_out: Counter[tuple[str, str]]


def memory_cases() -> Cases:
    """Return every row of the memory files as a case or under the reason why not."""
    cases: list[MemoryCase] = []
    left_out: Counter[tuple[str, str]] = Counter()
    for row in _rows("train_memory.csv"):
        # The 14 nanotron rows there are the best runs of the larger table and stand in it.
        if row["framework"].startswith("nanotron"):
            continue
        stack = row["framework"].split(" (")[0].split(" v0")[0]
        try:
            case = _case(row, stack)
            cases.append(case)
            cases.extend(_as_the_driver_showed_it(case, row))
        except (CannotAsk, PlimsollError) as problem:
            left_out[stack, shortened(str(problem))] += 1
    cases.extend(_nanotron_case(number, row) for number, row in enumerate(_rows("nanotron_h100.csv")))
    cases.extend(map(unseen_case, _rows("train_memory_cases.csv")))
    return Cases(cases=tuple(cases), left_out=left_out)


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (DATA / name).open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def _case(row: Row, stack: str) -> MemoryCase:
    if row["use_for"] in ("ratio", "delta"):
        raise CannotAsk(f"published for a {row['use_for']} only")
    stated = row["mem_kind"]
    return MemoryCase(
        case_id=row["case_id"],
        source=row["source"],
        stack=stack,
        request=row_request(row),
        measured_bytes=float(row["mem_gib"]) * GIB if row["mem_gib"] else None,
        kind=UNSTATED if stated in ("", "-") else stated.split(" ")[0].rstrip("?"),
        ran=row["outcome"].startswith("ok"),
        is_point=row["use_for"] == "point" and bool(row["mem_gib"]),
        is_seen=True,
    )


def _as_the_driver_showed_it(case: MemoryCase, row: Row) -> Iterator[MemoryCase]:
    """Yield the same run as nvidia-smi read it, where the source noted that beside the allocator's figure."""
    shown = re.search(r"nvidia-smi ([\d.]+) MiB", row["notes"])
    if shown and case.is_point:
        yield dataclasses.replace(
            case, case_id=f"{case.case_id}-nvidia-smi", measured_bytes=float(shown[1]) * MIB, kind=CARD
        )


def _nanotron_case(number: int, row: Row) -> MemoryCase:
    return MemoryCase(
        case_id=f"nanotron-{number}",
        source=NANOTRON_SOURCE,
        stack="nanotron",
        request=row_request(nanotron_row(row)),
        measured_bytes=float(row["gpu_mem_gb"]) * GIB if row["gpu_mem_gb"] else None,
        kind=RESERVED,
        # The run writes its table on world rank 0 (nanotron, helpers or utils: `log_throughput`).
        place=FIRST_RANK,
        ran=row["outcome"].startswith("ok"),
        is_point=bool(row["gpu_mem_gb"]),
        is_seen=True,
    )


def unseen_case(row: Row) -> MemoryCase:
    """Return a row of the runs that no constant was fitted to, which has its request beside it."""
    measured = float(row["measured_gib"]) * GIB if row["measured_gib"] else None
    return MemoryCase(
        case_id=row["id"],
        source=row["source"],
        stack=row["group"],
        request=json.loads(row["request"]),
        measured_bytes=measured,
        # The source calls what the whole card shows its peak.
        kind=CARD if row["kind"] == "peak" else row["kind"],
        place=LAST_STAGE if row["stage"] == "last" else "",
        ran=row["ran"] == "yes",
        is_point=measured is not None,
        is_seen=False,
        weight=WEIGHTS[row["sure"]],
    )


def shortened(problem: str) -> str:
    """Return a reason as long as a table has room for."""
    return problem if len(problem) <= LONGEST_REASON else f"{problem[:LONGEST_REASON]}…"
