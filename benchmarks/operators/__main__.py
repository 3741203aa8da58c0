"""Distill the measured tables into surfaces, and write what they miss by."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.operators.fitting import fitted
from benchmarks.operators.further import absorbed_tables, exchange_tables, sparse_tables
from benchmarks.operators.measurements import READERS, Measured
from benchmarks.operators.report import Miss, write_page
from plimsoll.planners.operators.surface import FloatArray, Surface
from plimsoll.planners.operators.tables import FOLDER, SEPARATOR, encoded, member_name

ALL_READERS = {
    "absorbed": absorbed_tables,
    "exchanges": exchange_tables,
    "sparse": sparse_tables,
    **READERS,
}
# One shape in so many is left out of a second fit, which is read at these shapes alone.
LEFT_OUT = 5


def main(folder: Path, *tables: str) -> None:
    """Write each card's surfaces and the page of their misses, of some tables or of all."""
    for name in tables or ALL_READERS:
        _write([_distilled(table) for table in ALL_READERS[name](folder)])


def _write(distilled: Sequence[Miss]) -> None:
    """Put one kind's surfaces into the cards' files, in place of those of the same operators."""
    cards: defaultdict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for miss in distilled:
        table = miss.table
        name = member_name(table.operator, table.engine, table.release, table.variant)
        cards[table.card][name] = encoded(miss.log2_seconds)
    operators = {miss.table.operator for miss in distilled}
    for card, surfaces in cards.items():
        file = FOLDER / f"{card}.npz"
        kept = {name: values for name, values in _read(file).items() if name.split(SEPARATOR)[0] not in operators}
        np.savez_compressed(file, **dict(sorted({**kept, **surfaces}.items())))
    write_page(distilled)


def _distilled(table: Measured) -> Miss:
    everything = np.ones(len(table.seconds), dtype=bool)
    log2_seconds = _fitted(table, everything)
    miss = Miss(
        table=table,
        log2_seconds=log2_seconds,
        estimates=_estimates(table, log2_seconds, everything),
        unseen=_unseen(table),
    )
    sys.stderr.write(f"{table.card} {table.operator} {table.engine} {table.variant}: {miss.line()}\n")
    return miss


def _read(file: Path) -> dict[str, np.ndarray]:
    return dict(np.load(file)) if file.exists() else {}


def _fitted(table: Measured, rows: npt.NDArray[np.bool_]) -> FloatArray:
    sizes = [size[rows] for size in table.sizes]
    return fitted(table.roofline, table.grid, sizes, table.seconds[rows])


def _estimates(table: Measured, log2_seconds: FloatArray, rows: npt.NDArray[np.bool_]) -> FloatArray:
    """Return estimate over measured of some rows."""
    surface = Surface(knots=table.grid.knots, log2_seconds=log2_seconds, roofline=table.roofline)
    return np.asarray(surface.seconds(*[size[rows] for size in table.sizes]) / table.seconds[rows])


def _unseen(table: Measured) -> FloatArray:
    """Return estimate over measured at shapes that their fit did not see."""
    out = table.shapes % LEFT_OUT == 0
    if out.all() or not out.any():
        return np.empty(0)
    return _estimates(table, _fitted(table, ~out), out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
