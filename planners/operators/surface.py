"""What an operator takes over its sizes: measured times on a grid, and a roofline under and beyond them."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]
# Knots of each axis: binary logarithms of sizes, ascending.
Knots = tuple[tuple[float, ...], ...]
MOST_KEPT_AXES = 256
# Seconds at least, of one array an axis, all of equal shape.
Roofline = Callable[..., FloatArray]


@dataclass(frozen=True, slots=True)
class Grid:
    """The sizes that an operator's times are known at, and along which axes more size means more time.

    Along `shares` a stand-in takes no longer for each unit the more there are: a batch shares the weights it reads.
    """

    knots: Knots
    grows: tuple[int, ...]
    shares: tuple[int, ...] = ()

    def growing(self, values: FloatArray) -> FloatArray:
        """Return values that never fall along the axes that grow: midway between the nearest such above and below."""
        for axis in self.grows:
            above = np.maximum.accumulate(values, axis)
            below = np.flip(np.minimum.accumulate(np.flip(values, axis), axis), axis)
            values = (above + below) / 2
        return values

    def sharing(self, values: FloatArray) -> FloatArray:
        """Return growing values that grow by no more than their size along the axes that share, midway as above.

        Where another card or format is nearer to its limit of arithmetic than the measured one, the same part of the
        roofline at the same rows would have a batch of twice as many take more than twice as long.
        """
        for axis in self.shares:
            sizes = np.asarray(self.knots[axis]).reshape([-1 if each == axis else 1 for each in range(values.ndim)])
            per_unit = values - sizes
            above = np.flip(np.maximum.accumulate(np.flip(per_unit, axis), axis), axis)
            below = np.minimum.accumulate(per_unit, axis)
            values = (above + below) / 2 + sizes
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
        """Return seconds at sizes, one array an axis, which are broadcast to one shape."""
        arrays = [np.asarray(size, dtype=np.float64) for size in sizes]
        least = self.roofline(*arrays)
        seconds = np.exp2(self._interpolated(arrays))
        inside = [_within(size, axis) for size, axis in zip(arrays, self.knots, strict=True)]
        if any(near is not size for near, size in zip(inside, arrays, strict=True)):
            seconds = seconds * (least / self.roofline(*inside))
        return np.asarray(np.maximum(least, seconds))

    def _interpolated(self, sizes: list[FloatArray]) -> FloatArray:
        """Return the logarithm between the knots; sizes alike at all points narrow the grid before it is read."""
        values: FloatArray = self.log2_seconds
        knots: list[tuple[float, ...]] = []
        varying: list[FloatArray] = []
        for axis, size in zip(self.knots, sizes, strict=True):
            if size.ndim:
                knots.append(axis)
                varying.append(size)
            else:
                low, part = _cell(axis, math.log2(float(size)))
                below = np.asarray(values.take(low, len(knots)))
                values = np.asarray(below + (values.take(low + 1, len(knots)) - below) * part)
        if not varying:
            return values
        if len(varying) == 1:
            return np.asarray(np.interp(np.log2(varying[0]), knots[0], values))
        flat = [size.ravel() for size in np.broadcast_arrays(*varying)]
        places, weights = corners(tuple(knots), flat)
        read = (values.ravel()[places] * weights).sum(axis=1)
        return np.asarray(read.reshape(np.broadcast_shapes(*(size.shape for size in varying))))


def _within(size: FloatArray, axis: tuple[float, ...]) -> FloatArray:
    """Return sizes brought between the first and the last knot, the same array where all lie there."""
    low, high = 2.0 ** axis[0], 2.0 ** axis[-1]
    least, most = (
        (np.minimum.reduce(size, axis=None), np.maximum.reduce(size, axis=None)) if size.ndim else (size, size)
    )
    if low <= float(least) and float(most) <= high:
        return size
    return np.asarray(np.minimum(np.maximum(size, low), high))


@lru_cache(maxsize=MOST_KEPT_AXES)
def _array(axis: tuple[float, ...]) -> FloatArray:
    return np.asarray(axis, dtype=np.float64)


def _cell(axis: tuple[float, ...], log2_size: float) -> tuple[int, float]:
    """Return the knot below a size and which part of the way to the next one it lies at."""
    low = min(max(bisect.bisect_right(axis, log2_size) - 1, 0), len(axis) - 2)
    part = (log2_size - axis[low]) / (axis[low + 1] - axis[low])
    return low, min(max(part, 0.0), 1.0)


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
        at = _array(axis)
        logs = np.minimum(np.maximum(np.log2(size), axis[0]), axis[-1])
        # Among the inner knots, so that the last one belongs to the last cell.
        low = at[1:-1].searchsorted(logs, side="right")
        below = at[low]
        part = ((logs - below) / (at[low + 1] - below))[:, None]
        first = places * len(axis) + low[:, None]
        places = np.concatenate([first, first + 1], axis=1)
        weights = np.concatenate([weights * (1 - part), weights * part], axis=1)
    return places, weights
