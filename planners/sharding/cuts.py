"""How ZeRO and FSDP cut a rank's tensors once more, over the ranks that would otherwise hold them alike."""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np

from plimsoll.planners.ground.errors import ImpossibleLayout
from plimsoll.planners.sharding.layout import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTensor:
    """One tensor on one rank: its shape there, and how many of its elements are the model's.

    Padding stands behind them in memory. `cut_dim` is the dimension that a stack
    which cuts tensors by dimension divides.
    """

    shape: tuple[int, ...]
    elements: int
    cut_dim: int = 0

    @property
    def stored_elements(self) -> int:
        """Return all its elements, padding included."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What each of some neighbouring shard ranks holds of a tensor.

    `elements` are the model's, `stored_elements` what memory is taken for: a
    padded shard has more than its shape says. A piece of a flat buffer has one
    dimension.
    """

    ranks: range
    shape: tuple[int, ...]
    elements: int
    stored_elements: int


class Cut(Hashable, Protocol):
    """One way to cut tensors over shard ranks."""

    @property
    def is_by_tensor(self) -> bool:
        """Return whether a tensor's pieces depend on that tensor alone, and not on those before it."""

    @property
    def keeps_dimensions(self) -> bool:
        """Return whether a piece of a matrix is a matrix, as an optimizer sees it."""

    def pieces(self, tensors: Sequence[LocalTensor], ranks: int) -> Iterator[tuple[Piece, ...]]:
        """Yield each tensor's pieces, in order of rank; every rank is in one of them."""

    def totals(self, tensors: Sequence[tuple[LocalTensor, int]], ranks: int) -> tuple[IntArray, IntArray]:
        """Return the model's elements and the stored elements on each rank, of so many of each tensor."""

    def first_rank(self, tensors: Sequence[tuple[LocalTensor, int]], ranks: int) -> tuple[int, int]:
        """Return what `totals` says of the first rank."""


class _ByTensor(ABC):
    """Cuts each tensor by itself."""

    is_by_tensor = True
    keeps_dimensions = True

    def pieces(self, tensors: Sequence[LocalTensor], ranks: int) -> Iterator[tuple[Piece, ...]]:
        """Yield each tensor's pieces, in order of rank."""
        known: dict[LocalTensor, tuple[Piece, ...]] = {}
        for tensor in tensors:
            if tensor not in known:
                known[tensor] = tuple(self._cut(tensor, ranks))
            yield known[tensor]

    def totals(self, tensors: Sequence[tuple[LocalTensor, int]], ranks: int) -> tuple[IntArray, IntArray]:
        """Return the model's elements and the stored elements on each rank, of so many of each tensor."""
        elements, stored = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
        for tensor, count in tensors:
            for piece in self._cut(tensor, ranks):
                held = slice(piece.ranks.start, piece.ranks.stop)
                elements[held] += count * piece.elements
                stored[held] += count * piece.stored_elements
        return elements, stored

    def first_rank(self, tensors: Sequence[tuple[LocalTensor, int]], ranks: int) -> tuple[int, int]:
        """Return what `totals` says of the first rank."""
        elements = stored = 0
        for tensor, count in tensors:
            piece = next(self._cut(tensor, ranks))
            elements, stored = elements + count * piece.elements, stored + count * piece.stored_elements
        return elements, stored

    @abstractmethod
    def _cut(self, tensor: LocalTensor, ranks: int) -> Iterator[Piece]:
        """Yield the pieces of one tensor, in order of rank."""


class Whole(_ByTensor):
    """Every rank keeps the whole tensor."""

    def _cut(self, tensor: LocalTensor, ranks: int) -> Iterator[Piece]:
        yield Piece(
            ranks=range(ranks),
            shape=tensor.shape,
            elements=tensor.elements,
            stored_elements=tensor.stored_elements,
        )


class FirstDimension(_ByTensor):
    """FSDP2: a dimension in ceilings, the last ranks' parts short or empty, all stored as large as the first.

    Only dimension 0 may be cut unevenly. The tensors have no padding of their own.

    Source: PyTorch, distributed/fsdp/_fully_shard/_fsdp_param.py,
    _init_sharded_param: torch.chunk, padded_sharded_size.
    """

    def _cut(self, tensor: LocalTensor, ranks: int) -> Iterator[Piece]:
        dim, length = tensor.cut_dim, tensor.shape[tensor.cut_dim]
        if dim and length % ranks:
            raise ImpossibleLayout(
                f"Dimension {dim} is cut evenly only: {length} of {tensor.shape} over {ranks} ranks.",
                rule="shard-ranks-divide",
                pointer="/layout/shard_group",
            )
        width = tensor.stored_elements // length if length else 0
        most = -(-length // ranks)
        for held, part in _chunks(length, ranks, most):
            shape = (*tensor.shape[:dim], part, *tensor.shape[dim + 1 :])
            yield Piece(ranks=held, shape=shape, elements=part * width, stored_elements=most * width)


class EachTensorFlat(_ByTensor):
    """DeepSpeed ZeRO-3: each tensor flat and padded to equal parts.

    Small tensors are kept gathered besides, which is no shard of them.

    Source: DeepSpeed, runtime/zero/partition_parameters.py, _partition_param.
    """

    keeps_dimensions = False

    def _cut(self, tensor: LocalTensor, ranks: int) -> Iterator[Piece]:
        most = -(-tensor.stored_elements // ranks)
        for held, part in _chunks(tensor.elements, ranks, most):
            yield Piece(ranks=held, shape=(most,), elements=part, stored_elements=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatBuffers:
    """All tensors one after the other in flat buffers, each divided into equal parts.

    A tensor starts on a multiple of `tensor_multiple` elements; a buffer ends on
    one of `buffer_multiple` and of `rank_multiple` times the ranks, and is closed
    once it holds `smallest_buffer` or `buffer_per_rank` times the ranks, whichever
    is more (0: one buffer holds everything). `is_reversed` fills them from the last
    tensor to the first, as the backward pass needs them.
    """

    rank_multiple: int = 1
    tensor_multiple: int = 1
    buffer_multiple: int = 1
    smallest_buffer: int = 0
    buffer_per_rank: int = 0
    is_reversed: bool = False

    @property
    def is_by_tensor(self) -> bool:
        """Return False: where a tensor lies depends on those before it."""
        return False

    @property
    def keeps_dimensions(self) -> bool:
        """Return False: a piece is a part of a buffer."""
        return False

    def pieces(self, tensors: Sequence[LocalTensor], ranks: int) -> Iterator[tuple[Piece, ...]]:
        """Yield each tensor's pieces, in order of rank."""
        placed = self._places(tensors, ranks)
        for tensor, (start, buffer) in zip(tensors, placed, strict=True):
            yield tuple(_overlaps(tensor, start - buffer.start, len(buffer) // ranks, ranks))

    def totals(self, tensors: Sequence[tuple[LocalTensor, int]], ranks: int) -> tuple[IntArray, IntArray]:
        """Return the model's elements and the stored elements on each rank; each rank stores as much."""
        return self._on_ranks(tensors, ranks, ranks)

    def first_rank(self, tensors: Sequence[tuple[LocalTensor, int]], ranks: int) -> tuple[int, int]:
        """Return what `totals` says of the first rank."""
        elements, stored = self._on_ranks(tensors, ranks, 1)
        return int(elements[0]), int(stored[0])

    def _on_ranks(
        self, tensors: Sequence[tuple[LocalTensor, int]], ranks: int, wanted: int
    ) -> tuple[IntArray, IntArray]:
        """Return the model's elements and the stored elements of the first so many of the ranks."""
        each = [tensor for tensor, count in tensors for _ in range(count)]
        places = self._places(each, ranks)
        in_order = sorted(zip((start for start, _ in places), (tensor.elements for tensor in each), strict=True))
        starts = np.array([start for start, _ in in_order], dtype=np.int64)
        lengths = np.array([length for _, length in in_order], dtype=np.int64)
        before = np.cumsum(lengths) - lengths
        elements, stored = np.zeros(wanted, dtype=np.int64), np.zeros(wanted, dtype=np.int64)
        for buffer in {buffer.start: buffer for _, buffer in places}.values():
            ends = buffer.start + np.arange(wanted + 1) * (len(buffer) // ranks)
            last = np.maximum(np.searchsorted(starts, ends, side="right") - 1, 0)
            elements += np.diff(before[last] + np.clip(ends - starts[last], 0, lengths[last]))
            stored += len(buffer) // ranks
        return elements, stored

    def _places(self, tensors: Sequence[LocalTensor], ranks: int) -> list[tuple[int, range]]:
        """Return where each tensor starts, and the buffer it lies in."""
        end_multiple = math.lcm(self.rank_multiple * ranks, self.buffer_multiple)
        full = max(self.smallest_buffer, self.buffer_per_rank * ranks)
        starts: list[int] = []
        buffers: list[range] = []
        buffer_start = end = 0
        for tensor in reversed(tensors) if self.is_reversed else tensors:
            start = _rounded_up(end, self.tensor_multiple)
            starts.append(start)
            end = start + tensor.stored_elements
            if full and end - buffer_start >= full:
                buffer = range(buffer_start, _rounded_up(end, end_multiple))
                buffers.extend([buffer] * (len(starts) - len(buffers)))
                buffer_start = end = buffer.stop
        buffers.extend([range(buffer_start, _rounded_up(end, end_multiple))] * (len(starts) - len(buffers)))
        placed = list(zip(starts, buffers, strict=True))
        return placed[::-1] if self.is_reversed else placed


CUTS: Mapping[str, Callable[..., Cut]] = MappingProxyType(
    {
        "whole": Whole,
        "first_dimension": FirstDimension,
        "each_tensor_flat": EachTensorFlat,
        "flat_buffers": FlatBuffers,
    }
)


@functools.cache
def cut_of_kind(kind: str, **settings: int | bool) -> Cut:
    """Return the cut of that name of `CUTS` with its settings, one of each."""
    return CUTS[kind](**settings)


def _chunks(length: int, ranks: int, most: int) -> Iterator[tuple[range, int]]:
    """Yield ranges of ranks and what each of them gets when chunks of `most` are given out in order."""
    full, rest = divmod(length, most) if most else (0, 0)
    if full:
        yield range(full), most
    if rest:
        yield range(full, full + 1), rest
    first_empty = full + (rest > 0)
    if first_empty < ranks:
        yield range(first_empty, ranks), 0


def _overlaps(tensor: LocalTensor, start: int, part: int, ranks: int) -> Iterator[Piece]:
    """Yield what of a tensor at `start` of a buffer lies in each rank's `part` of it."""
    end, end_of_model = start + tensor.stored_elements, start + tensor.elements
    first, last = start // part, -(-end // part)
    # Between its first and its last rank a tensor fills every part, but where its own padding begins.
    edges = sorted({0, first, first + 1, end_of_model // part, end_of_model // part + 1, last - 1, last, ranks})
    for low, high in itertools.pairwise(edges):
        if low < 0 or high > ranks:
            continue
        begin, stop = max(low * part, start), min((low + 1) * part, end)
        stored, own = max(stop - begin, 0), max(min(stop, end_of_model) - begin, 0)
        yield Piece(ranks=range(low, high), shape=(stored,), elements=own, stored_elements=stored)


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
