"""The page of what surfaces miss by: at the shapes they were fitted on, and at shapes left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.operators.measurements import Measured
from plimsoll.planners.operators.surface import FloatArray

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"
BEGIN, END = "<!-- table: operators -->", "<!-- end -->"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Miss:
    """One surface, with estimates over measured times of its rows, and of rows whose shape another fit left out."""

    table: Measured
    log2_seconds: FloatArray
    estimates: FloatArray
    unseen: FloatArray

    def line(self) -> str:
        """Return rows, and median and 90th percentile of the relative error."""
        return f"{len(self.estimates)} rows, {spread(self.estimates)}, shapes left out {spread(self.unseen)}"


def spread(estimates: FloatArray) -> str:
    """Return the median and the 90th percentile of the relative error of estimates over measured times."""
    if not len(estimates):
        return "-"
    errors = np.abs(estimates - 1)
    return f"{np.median(errors):.1%} ({np.quantile(errors, 0.9):.0%})"


def write_page(misses: Sequence[Miss]) -> None:
    """Write the table into its place of the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    table, after = rest.split(END, maxsplit=1)
    distilled = {miss.table.operator for miss in misses}
    others = [line for line in table.splitlines()[3:-1] if line.split()[0] not in distilled]
    head, *found = _lines(misses)
    lines = "\n".join([head, *sorted([*others, *found])])
    PAGE.write_text(f"{before}{BEGIN}\n```\n{lines}\n```\n{END}{after}", encoding="utf-8")


def write_block(name: str, lines: Sequence[str]) -> None:
    """Write lines into the place of that name in the page."""
    before, rest = PAGE.read_text(encoding="utf-8").split(f"<!-- table: {name} -->")
    after = rest.split(END, maxsplit=1)[1]
    block = "\n".join(lines)
    PAGE.write_text(f"{before}<!-- table: {name} -->\n```\n{block}\n```\n{END}{after}", encoding="utf-8")


def _lines(misses: Sequence[Miss]) -> list[str]:
    groups: defaultdict[tuple[str, str, str], list[Miss]] = defaultdict(list)
    for miss in misses:
        table = miss.table
        groups[table.operator, table.engine, table.variant.rstrip("0123456789").rstrip(",")].append(miss)
    head = f"{'operator':25}{'engine':14}{'variant':22}{'cards':>5}{'rows':>10}{'fitted':>16}{'shapes left out':>18}"
    return [head, *(_line(key, groups[key]) for key in sorted(groups))]


def _line(key: tuple[str, str, str], misses: Sequence[Miss]) -> str:
    seen = np.concatenate([miss.estimates for miss in misses])
    unseen = np.concatenate([miss.unseen for miss in misses])
    cards = len({miss.table.card for miss in misses})
    operator, engine, variant = key
    left = f"{operator:25}{engine:14}{variant:22}{cards:>5}{len(seen):>10,}"
    return f"{left}{spread(seen):>16}{spread(unseen):>18}"
