"""A surface fitted to measured times: least squares of logarithms on a grid, held smooth where few rows lie."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plimsoll.planners.operators.surface import FloatArray, Grid, IndexArray, Roofline, at_knots, corners

# Residuals beyond this part of a doubling count by their size and not by its square (Huber 1964).
OUTLIER = 0.15
ROUNDS = 4
# How firmly a knot is held to the line through its neighbours, and to a neighbour itself, in rows.
STRAIGHT, LEVEL = 0.05, 0.0004
MOST_ITERATIONS = 300
CONVERGED = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class _Terms:
    """Rows of a linear system: each adds up `weights` times the values at `places`; both are [rows, terms]."""

    places: IndexArray
    weights: FloatArray

    def times(self, values: FloatArray) -> FloatArray:
        return np.asarray(np.einsum("rc,rc->r", values[self.places], self.weights))

    def transposed_times(self, rows: FloatArray, size: int) -> FloatArray:
        return np.bincount(self.places.ravel(), (self.weights * rows[:, None]).ravel(), size)


def fitted(roofline: Roofline, grid: Grid, sizes: list[FloatArray], seconds: FloatArray) -> FloatArray:
    """Return the seconds of an operator at the knots, as binary logarithms, never less than its roofline.

    They are the nearest to the rows of sizes and seconds that grow where the grid says so.
    """
    least = at_knots(roofline, grid.knots)
    measured = _Terms(*corners(grid.knots, sizes))
    targets = np.log2(seconds) - measured.times(least.ravel())
    smooth = _smoothness(least.shape)
    counts, values = np.ones(len(targets)), np.full(least.size, float(np.median(targets)))
    for _ in range(ROUNDS):
        values = _solved(measured, counts, targets, smooth, values)
        counts = np.minimum(1.0, OUTLIER / np.maximum(np.abs(targets - measured.times(values)), 1e-9))
    return grid.growing(np.maximum(values.reshape(least.shape), 0.0) + least)


def _solved(
    measured: _Terms, counts: FloatArray, targets: FloatArray, smooth: list[tuple[_Terms, float]], start: FloatArray
) -> FloatArray:
    """Return the values of least squares by conjugate gradients, each scaled by its own curvature (Jacobi's)."""
    size = len(start)

    def applied(values: FloatArray) -> FloatArray:
        result = measured.transposed_times(counts * measured.times(values), size)
        for terms, weight in smooth:
            result += weight * terms.transposed_times(terms.times(values), size)
        return result

    squares = np.bincount(measured.places.ravel(), (counts[:, None] * measured.weights**2).ravel(), size)
    for terms, weight in smooth:
        squares += weight * np.bincount(terms.places.ravel(), (terms.weights**2).ravel(), size)
    values = start.copy()
    residual = measured.transposed_times(counts * targets, size) - applied(values)
    scaled = residual / squares
    direction, product = scaled.copy(), residual @ scaled
    least = CONVERGED**2 * product
    for _ in range(MOST_ITERATIONS):
        if product <= least:
            break
        curved = applied(direction)
        step = product / (direction @ curved)
        values += step * direction
        residual -= step * curved
        scaled = residual / squares
        product, before = residual @ scaled, product
        direction = scaled + product / before * direction
    return values


def _smoothness(shape: tuple[int, ...]) -> list[tuple[_Terms, float]]:
    """Return terms that are 0 where values run straight, and nearly so where neighbours are alike, with weights."""
    places = np.arange(int(np.prod(shape))).reshape(shape)
    found = []
    for axis, length in enumerate(shape):
        for weights, firmness in (((1.0, -2.0, 1.0), STRAIGHT), ((1.0, -1.0), LEVEL)):
            if length >= len(weights):
                last = length - len(weights) + 1
                columns = [_along(places, axis, first, last + first) for first in range(len(weights))]
                terms = _Terms(np.stack(columns, axis=1), np.tile(weights, (len(columns[0]), 1)))
                found.append((terms, firmness))
    return found


def _along(places: npt.NDArray[np.int64], axis: int, first: int, last: int) -> IndexArray:
    return places.take(range(first, last), axis).ravel()
