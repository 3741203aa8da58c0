"""What a comparison shows, as text: counts and distances by class, and the worst lines by name."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.random_plans.comparing import BELOW_FRACTION, FAR_ABOVE_FRACTION, Row

GIB = 2**30
MOST_SHOWN = 15
SHOWN_APART_FRACTION = 0.002


def summary(every: Sequence[Row], most_shown: int = MOST_SHOWN) -> Iterator[str]:
    """Yield the lines of the report; the textbook's sums stand in a line of their own and nowhere else."""
    yield f"{'':34} stages    mean   lowest  highest  below -{BELOW_FRACTION:.1%}  above +{FAR_ABOVE_FRACTION:.0%}"
    rows, textbook = [row for row in every if not row.is_textbook], [row for row in every if row.is_textbook]
    classes = sorted({name for row in rows for name in row.classes})
    for name, some in (
        ("all stacks that run", rows),
        ("the textbook", textbook),
        *((name, [row for row in rows if name in row.classes]) for name in classes),
    ):
        if some:
            yield _line(name, some)
    ordered = sorted(rows, key=lambda row: row.distance)
    yield "\nmost below their trace:"
    yield from (_shown(row) for row in ordered[:most_shown] if row.is_below)
    yield "\nmost above their trace:"
    yield from (_shown(row) for row in ordered[::-1][:most_shown] if row.is_far_above)
    yield from _of_hosts(rows, most_shown)


def _of_hosts(rows: Sequence[Row], most_shown: int) -> Iterator[str]:
    using = [row for row in rows if row.traced_host_bytes]
    below = [row for row in using if row.is_below_on_host]
    yield f"\nof {len(using)} stages that use the host's memory {len(below)} are planned below their trace there"
    for row in below[:most_shown]:
        sizes = f"{row.planned_host_bytes / GIB:.3f} for {row.traced_host_bytes / GIB:.3f} GiB"
        yield f"{row.planned_host_bytes / row.traced_host_bytes - 1:+8.2%}  {row.name}: {sizes}"


def _line(name: str, rows: Sequence[Row]) -> str:
    distances = [row.distance for row in rows]
    below, above = sum(row.is_below for row in rows), sum(row.is_far_above for row in rows)
    mean = statistics.mean(map(abs, distances))
    return f"{name:34} {len(rows):6} {mean:7.2%} {min(distances):+8.2%} {max(distances):+8.2%} {below:12} {above:10}"


def _shown(row: Row) -> str:
    """Return a row in a line: sizes in GiB, phases of plan and trace, and the items that are apart."""
    apart = ", ".join(
        f"{name} {difference / row.traced_bytes:+.1%}"
        for name, difference in row.apart.items()
        if abs(difference) > SHOWN_APART_FRACTION * row.traced_bytes
    )
    sizes = f"{row.planned_bytes / GIB:.3f} for {row.traced_bytes / GIB:.3f} GiB"
    return f"{row.distance:+8.2%}  {row.name}: {sizes}; {row.planned_phase} / {row.traced_phase}; {apart}"
