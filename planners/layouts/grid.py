"""All combinations of the axes at once, without writing every one of them down.

Nearly everything that memory and time depend on varies along a few axes only:
the states with mesh and ZeRO stage, the activations with mesh, micro-batch and
recompute. In a grid each array of `Candidates` has the length of its own axes
and 1 elsewhere, so that numpy works a formula out for the combinations of what
it depends on; only the last sums and maxima are of the grid's whole size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from plimsoll.planners.layouts.candidates import (
    EVERY_COLUMN,
    BoolArray,
    Candidates,
    FloatArray,
    IntArray,
    candidates_of,
)

# So many layouts fewer are worth another grid, of which nothing is known yet.
FEW_CELLS = 1024
# Of each axis of a grid all others.
OTHER_AXES = ((1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Layouts along the axes of `shape` (fused loss, recompute, ZeRO stage and offload, base).

    A base is a mesh with a micro-batch size. Bases are innermost because they are
    many: numpy's inner loops run along them.
    `distinct` broadcasts to the grid's shape; it is false where a choice changes
    nothing, so that the same layout stands elsewhere in the grid. `known` are quantities
    of the layouts that were worked out already, and stay with those of some bases.
    """

    layouts: Candidates
    distinct: BoolArray
    shape: tuple[int, ...]
    known: Mapping[str, FloatArray] = field(default_factory=dict)

    @property
    def bases(self) -> int:
        """Return how many bases there are."""
        return self.shape[-1]

    def __len__(self) -> int:
        """Return how many layouts there are, each counted once."""
        return counted(self.distinct, self.shape)

    @property
    def cells(self) -> BoolArray:
        """Return which layouts are counted, in the grid's whole shape."""
        return self.distinct if self.distinct.shape == self.shape else np.broadcast_to(self.distinct, self.shape)

    def of_bases(self, index: IntArray) -> Grid:
        """Return the grid of some of the bases only, in rising order."""
        if index.size == self.bases:
            return self
        chosen = [values if values.size == 1 else along_bases(values, index) for values in EVERY_COLUMN(self.layouts)]
        return Grid(
            layouts=candidates_of(chosen),
            distinct=along_bases(self.distinct, index),
            shape=(*self.shape[:-1], index.size),
            known={name: along_bases(values, index) for name, values in self.known.items()},
        )

    def smallest(self) -> Grid:
        """Return the least part of the grid that has all of its distinct layouts, or all where it is not much less."""
        cells = self.cells
        kept = [np.asarray(cells.any(axis=others)).nonzero()[0] for others in OTHER_AXES]
        shape = tuple(index.size for index in kept)
        cut = [(axis - cells.ndim, kept[axis]) for axis in range(cells.ndim) if shape[axis] < self.shape[axis]]
        if not cut or math.prod(self.shape) - math.prod(shape) < FEW_CELLS:
            return self
        columns = [values if values.size == 1 else _of_axes(values, cut) for values in EVERY_COLUMN(self.layouts)]
        return Grid(
            layouts=candidates_of(columns),
            distinct=_of_axes(cells, cut),
            shape=shape,
            known={name: _of_axes(values, cut) for name, values in self.known.items()},
        )

    def take(self, cells: IntArray) -> Candidates:
        """Return the layouts at flat indices of the grid, as a list."""
        at = Cells(cells, self.shape)
        return candidates_of([at.of(values) for values in EVERY_COLUMN(self.layouts)])

    def every(self) -> Candidates:
        """Return all layouts as a list, base after base."""
        cells = np.flatnonzero(self.cells)
        return self.take(cells[np.argsort(self.order(cells), kind="stable")])

    def order(self, cells: IntArray) -> IntArray:
        """Return the places of cells in the order of bases, stages, recompute and loss."""
        order: IntArray = np.ravel_multi_index(np.unravel_index(cells, self.shape)[::-1], self.shape[::-1])
        return order


def grid_of(layouts: Candidates, distinct: BoolArray) -> Grid:
    """Return the grid whose axes are as long as its layouts' arrays."""
    return Grid(layouts=layouts, distinct=distinct, shape=layouts.shape)


class Cells:
    """Some cells of a grid, by their flat indices: what an array of the grid has at each of them.

    Arrays of one shape vary along the same axes, so that their values lie at the same places.
    """

    def __init__(self, cells: IntArray, shape: tuple[int, ...]) -> None:
        self._count = cells.size
        self._along = np.unravel_index(cells, shape)
        self._places: dict[tuple[int, ...], IntArray] = {}

    def of(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the value of each cell; `values` varies along some of the last axes only."""
        if values.size == 1:
            return np.full(self._count, values.item())
        if values.shape not in self._places:
            self._places[values.shape] = self._places_in(values.shape)
        return values.take(self._places[values.shape])

    def _places_in(self, shape: tuple[int, ...]) -> IntArray:
        places = np.zeros(self._count, dtype=np.int64)
        for along, length in zip(self._along[len(self._along) - len(shape) :], shape, strict=True):
            if length != 1:
                places = places * length + along
        return places


def _of_axes(values: npt.NDArray[Any], cut: Sequence[tuple[int, IntArray]]) -> npt.NDArray[Any]:
    """Return what `values` has at some places of axes, counted from the last; it may vary along others only."""
    for axis, index in cut:
        if values.ndim >= -axis and values.shape[axis] > 1:
            values = values.take(index, axis=axis)
    return values


def along_bases(values: npt.NDArray[Any], index: IntArray) -> npt.NDArray[Any]:
    """Return what `values` has for some of the bases; what is the same for all stays."""
    return values[..., index] if values.ndim and values.shape[-1] > 1 else values


def counted(mask: BoolArray, shape: tuple[int, ...]) -> int:
    """Return how many cells of the whole shape a mask that broadcasts to it holds for."""
    return int(np.count_nonzero(mask)) * (math.prod(shape) // max(mask.size, 1))
