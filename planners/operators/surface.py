"""What an operator takes over its sizes: measured times on a grid, and a roofline under and beyond them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]
# Knots of each axis: binary logarithms of sizes, ascending.
Knots = tuple[tuple[float, ...], ...]
# Seconds at least, of one array an axis, all of equal shape.
Roofline = Callable[..., FloatArray]


@dataclass(frozen=True, slots=True)
class Grid:
    """The sizes that an operator's times are known at, and along which axes more size means more time."""

    knots: Knots
    grows: tuple[int, ...]

    def growing(self, values: FloatArray) -> FloatArray:
        """Return values that never fall along the axes that grow: midway between the nearest such above and below."""
        for axis in self.grows:
            above = np.maximum.accumulate(values, axis)
            below = np.flip(np.minimum.accumulate(np.flip(values, axis), axis), axis)
            values = (above + below) / 2
        return values


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Surface:
    """Binary logarithms of seconds at the knots of a grid, one axis a size of the operator.

    Between knots they are interpolated in a straight line along every axis, so that what grows from knot to knot grows
    in between. Nothing is faster than the roofline, and beyond the last knot its growth alone carries on.
    """

    knots: Knots
    log2_seconds: FloatArray
    roofline: Roofline

    def __post_init__(self) -> None:
        """Refuse a grid of another shape than its knots, or with knots out of order."""
        shape = tuple(len(axis) for axis in self.knots)
        if self.log2_seconds.shape != shape:
            raise ValueError(f"A surface of {shape} knots has values of shape {self.log2_seconds.shape}.")
        if any(low >= high for axis in self.knots for low, high in pairwise(axis)):
            raise ValueError("Knots ascend along every axis.")

    def seconds(self, *sizes: npt.ArrayLike) -> FloatArray:
        """Return the seconds at sizes above 0, one array an axis, all of a shape that broadcasts."""
        arrays = np.broadcast_arrays(*[np.asarray(size, dtype=np.float64) for size in sizes])
        flat = [array.ravel() for array in arrays]
        inside = [np.clip(size, 2.0 ** axis[0], 2.0 ** axis[-1]) for size, axis in zip(flat, self.knots, strict=True)]
        places, weights = corners(self.knots, inside)
        measured = np.exp2(np.einsum("pc,pc->p", self.log2_seconds.ravel()[places], weights))
        least = self.roofline(*flat)
        seconds = np.maximum(least, measured * least / self.roofline(*inside))
        return np.asarray(seconds.reshape(arrays[0].shape))


def at_knots(roofline: Roofline, knots: Knots) -> FloatArray:
    """Return the binary logarithm of a roofline's seconds at each knot of a grid."""
    sizes = np.meshgrid(*[np.exp2(np.asarray(axis, dtype=np.float64)) for axis in knots], indexing="ij")
    return np.asarray(np.log2(roofline(*sizes)))


def corners(knots: Knots, sizes: list[FloatArray]) -> tuple[IndexArray, FloatArray]:
    """Return the corners of the cell of each point, as places in the flat grid, and their weights, which add up to 1.

    `sizes` are positive, one flat array an axis; both results are [points, 2 ** axes].
    """
    places = np.zeros((len(sizes[0]), 1), dtype=np.int64)
    weights = np.ones((len(sizes[0]), 1))
    for axis, size in zip(knots, sizes, strict=True):
        at = np.asarray(axis, dtype=np.float64)
        logs = np.clip(np.log2(size), at[0], at[-1])
        low = np.clip(np.searchsorted(at, logs, side="right") - 1, 0, len(at) - 2)
        part = ((logs - at[low]) / (at[low + 1] - at[low]))[:, None]
        first = places * len(at) + low[:, None]
        places = np.concatenate([first, first + 1], axis=1)
        weights = np.concatenate([weights * (1 - part), weights * part], axis=1)
    return places, weights
