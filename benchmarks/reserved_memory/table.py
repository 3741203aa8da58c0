"""How far each way is from what was measured, by stack, and what a factor says of tables that it has not seen."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from benchmarks.reserved_memory.rows import TRACE_FIXED, WAYS, Row

# The factor that a row was measured to have, and what the row reserves by a factor.
Factor = tuple[Callable[[Row], float], Callable[[Row, float], float]]
OF_ALL: Factor = (
    lambda row: row.measured_bytes / row.allocated_bytes,
    lambda row, factor: factor * row.allocated_bytes,
)
OF_MAIN_POOL: Factor = (
    lambda row: (row.measured_bytes - row.other_bytes) / row.main_bytes,
    lambda row, factor: factor * row.main_bytes + row.other_bytes,
)
FACTORS = {"a factor of all": OF_ALL, "of the main pool": OF_MAIN_POOL}


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a table by stack, of all rows and of those that were traced, and one of factors of unseen tables."""
    yield f"{'mean distance (bias), worst':34}" + "".join(way.rjust(27) for way in WAYS)
    for stack, of_stack in groupby(sorted(rows, key=_stack), key=_stack):
        members = list(of_stack)
        traced = [row for row in members if TRACE_FIXED in row.told]
        yield _line(f"{stack[:22]}, {len(members)} rows", members)
        if traced and len(traced) < len(members):
            yield _line(f"  {len(traced)} traced", traced)
    yield ""
    for stack, of_stack in groupby(sorted(rows, key=_stack), key=_stack):
        yield from _unseen(stack, list(of_stack))


def row_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield every row with what each way says of it."""
    for row in rows:
        said = (f"{row.told[way] / row.measured_bytes - 1:+.1%}" if way in row.told else "-" for way in WAYS)
        cells = "".join(cell.rjust(10) for cell in said)
        yield f"{row.case.case_id[:60]:60} {row.measured_bytes / 2**30:7.2f} GiB{cells}"


def _line(name: str, rows: Sequence[Row]) -> str:
    cells = []
    for way in WAYS:
        errors = [row.told[way] / row.measured_bytes - 1 for row in rows if way in row.told]
        cells.append(_figures(errors) if len(errors) == len(rows) else "-")
    return f"{name:34}" + "".join(cell.rjust(27) for cell in cells)


def _unseen(stack: str, rows: Sequence[Row]) -> Iterator[str]:
    """Yield how far factors are from the rows of each table, which are medians of all others' tables."""
    tables = {row.table for row in rows}
    if len(tables) == 1 or all(not row.other_bytes for row in rows):
        return
    yield f"{stack}, each of {len(tables)} tables by the others' median"
    for name, (had, told) in FACTORS.items():
        errors = []
        for row in rows:
            factor = statistics.median(had(other) for other in rows if other.table != row.table)
            errors.append(told(row, factor) / row.measured_bytes - 1)
        yield f"  {name:32}{_figures(errors):>27}"


def _figures(errors: Sequence[float]) -> str:
    worst = max(errors, key=abs)
    return f"{statistics.mean(map(abs, errors)):.1%} ({statistics.mean(errors):+.1%}), {worst:+.1%}"


def _stack(row: Row) -> str:
    return row.case.stack
