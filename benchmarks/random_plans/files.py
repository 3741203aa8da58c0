"""The stored sets: plans drawn from a seed, and their traces in files of a hundred."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.random_plans.draw import DrawnPlan

FOLDER = Path(__file__).parents[1] / "data" / "random_plans"
PLANS_A_FILE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSet:
    """One set of plans. A `sealed` one is judged as a whole: nobody looks at its plans while formulas are written."""

    name: str
    seed: int
    is_sealed: bool = False
    folder: Path = FOLDER

    @property
    def plans_file(self) -> Path:
        """Return the file of the drawn plans."""
        return self.folder / self.name / "plans.jsonl.gz"

    def plans(self) -> list[DrawnPlan]:
        """Return the drawn plans in the order of their numbers."""
        return [DrawnPlan.from_json(line) for line in _read(self.plans_file)]

    def write_plans(self, plans: Iterable[DrawnPlan]) -> None:
        """Store the drawn plans."""
        _write(self.plans_file, (plan.to_json() for plan in plans))

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the traces in the order of their plans."""
        for file in sorted(self.plans_file.parent.glob("traces-*.jsonl.gz")):
            yield from _read(file)

    def write_lines(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Store traces, each in the file of its hundred beside those that are there."""
        by_file: dict[Path, dict[int, Mapping[str, Any]]] = {}
        for line in lines:
            file = self.plans_file.with_name(f"traces-{line['number'] // PLANS_A_FILE:02}.jsonl.gz")
            by_file.setdefault(file, {kept["number"]: kept for kept in _read(file)})[line["number"]] = line
        for file, kept in by_file.items():
            _write(file, (kept[number] for number in sorted(kept)))


SETS = {
    stored.name: stored
    for stored in (StoredSet(name="fitted", seed=20_261_123), StoredSet(name="sealed", seed=7_308_419, is_sealed=True))
}


def _read(file: Path) -> Iterator[dict[str, Any]]:
    if file.exists():
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def _write(file: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write a file anew, without a time in it, so that the same lines are the same bytes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    beside = file.with_suffix(".part")
    beside.write_bytes(gzip.compress(text.encode(), mtime=0))
    beside.replace(file)
