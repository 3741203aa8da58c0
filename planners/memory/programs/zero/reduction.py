"""How DeepSpeed's engine reduces gradients, tensor by tensor, and what that holds; all in elements.

Stages 0 and 1 keep whole gradients to the step's end, stages 2 and 3 gather them in a bucket as they come. A bucket is
flushed as the next gradient does not fit; one that is larger than the bucket waits in a storage of its own
(runtime/zero/stage_1_and_2.py, `reduce_independent_p_g_buckets_and_remove_grads`, 1414; stage3.py, 1569).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from plimsoll.planners.memory.programs.zero.tensors import Tensor

# runtime/engine.py, MEMORY_OPT_ALLREDUCE_SIZE: what is reduced at once without ZeRO.
REDUCED_AT_ONCE = 500_000_000
# stage3.py, `_offload_grad_partition_at_boundary`: the norm is taken of so many elements at a time.
NORM_AT_ONCE = 250_000_000
# Some hundred buckets of some hundred numbers of ranks.
MOST_KEPT_COPIES = 65_536


class Reduction(Protocol):
    """What is done with gradients as they come; `held` is what stays of them."""

    held: int

    def hook(self, tensor: Tensor) -> int:
        """Take a gradient that has just been made; return the most that is held meanwhile, itself included."""

    def end(self) -> int:
        """Reduce what is left, and return the most that is held meanwhile."""


class Kept:
    """Stages 0 and 1 as gradients come: all are kept, or added to those of the micro-batches before."""

    def __init__(self, *, adds_up: bool) -> None:
        self.held = 0
        self._adds_up = adds_up

    def hook(self, tensor: Tensor) -> int:
        """Keep a gradient."""
        most = self.held + tensor.elements
        self.held += 0 if self._adds_up else tensor.elements
        return most

    def end(self) -> int:
        """Do nothing before the step's last micro-batch is through (`whole_at_boundary`, `divided_at_boundary`)."""
        return self.held


class Parts:
    """The parts of stages 1 and 2: all parameters end to end, cut evenly; one rank's, where none is named the last's.

    `touched` are the elements of the tensors that it reaches into, whole ones: for these gradients that a rank keeps
    are allocated at once (stage_1_and_2.py, 2184). `slices` are what of them lies within the part.
    """

    def __init__(self, tensors: Sequence[Tensor], ranks: int, rank: int | None = None) -> None:
        sizes = np.array([tensor.elements for tensor in tensors], dtype=np.int64)
        self.each = part_elements(int(sizes.sum()), ranks)
        self._first = self.each * (ranks - 1 if rank is None else rank)
        ends = np.cumsum(sizes)
        slices = np.minimum(ends, self._first + self.each) - np.maximum(ends - sizes, self._first)
        self.touched = int(sizes[slices > 0].sum())
        self.slices: list[int] = slices[slices > 0].tolist()

    def is_own(self, first: int, end: int) -> bool:
        """Return whether the part reaches into these elements."""
        return self._slice(first, end) > 0

    def largest_slice(self, sizes: Sequence[int], end: int) -> int:
        """Return the most of one tensor that lies within the part; the last of them ends there, the first is last."""
        most = 0
        for size in sizes:
            most = max(most, self._slice(end - size, end))
            end -= size
        return most

    def _slice(self, first: int, end: int) -> int:
        return min(end, self._first + self.each) - max(first, self._first)

    def copied(self, first: int, end: int, bucket: int) -> int:
        """Return the largest copy that is made as these elements are reduced."""
        return copied(first, end, self.each, bucket)


@functools.lru_cache(maxsize=MOST_KEPT_COPIES)
def copied(first: int, end: int, each: int, bucket: int) -> int:
    """Return the largest copy that is made as these elements of parts of so many are reduced.

    Each rank's slice goes to it alone; slices are put end to end until they are more than the bucket, and one
    alone is not copied (stage_1_and_2.py, `allreduce_and_scatter`, 1545).
    """
    most, gathered, slices = 0, 0, 0
    while first < end:
        cut = min((first // each + 1) * each, end)
        gathered, slices, first = gathered + cut - first, slices + 1, cut
        if gathered > bucket or first == end:
            most = max(most, gathered if slices > 1 else 0)
            gathered = slices = 0
    return most


def part_elements(elements: int, ranks: int) -> int:
    """Return the elements of a part: all are padded to two a rank (stage_1_and_2.py, 435)."""
    return 2 * -(-elements // (2 * ranks))


def fullest_ranks(tensors: Sequence[Tensor], ranks: int) -> list[int]:
    """Return the ranks of which one holds most: the first, the last, and the one whose part touches most.

    The last one's gradients come first, while all that the layers keep is there; the first one's are allocated before
    any other gradient of stage 1 is let go of.
    """
    sizes = np.array([tensor.elements for tensor in tensors], dtype=np.int64)
    ends = np.cumsum(sizes)
    each = part_elements(int(sizes.sum()), ranks)
    borders = np.minimum(np.arange(ranks + 1) * each, sizes.sum())
    first = np.minimum(np.searchsorted(ends, borders[:-1], side="right"), len(sizes) - 1)
    last = np.minimum(np.searchsorted(ends, borders[1:], side="left"), len(sizes) - 1)
    touched = ends[last] - ends[first] + sizes[first]
    most = ranks - 1 - int(touched[::-1].argmax())
    return sorted({0, most, ranks - 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """How gradients are sent to the host: the norm of each is taken before that, and it is cast, in so many elements.

    `adds_up` where micro-batches before the last one add up what is on the host; `all_at_once` where what one bucket
    has is cast, in so many elements, before any of it goes.
    """

    norm: int
    cast: int
    adds_up: bool
    all_at_once: int = 0


class DividedAsTheyCome:
    """Stage 2: a gradient is copied into the bucket and let go of; of a flushed bucket a rank keeps its part's.

    Sent to the host, they are not kept; of one that fits into no bucket there is a copy as it comes (1443), and one of
    the part stays to the end of all micro-batches but the last (2142).
    """

    def __init__(self, tensors: Sequence[Tensor], parts: Parts, bucket: int, sending: Sending | None) -> None:
        self.held = 0
        self._parts, self._bucket, self._sending = parts, bucket, sending
        self._end = sum(tensor.elements for tensor in tensors)
        self._filled = self._waits = self._stays = 0
        self._first = self._last = self._end
        self._sizes: list[int] = []
        self._has_own = False

    def hook(self, tensor: Tensor) -> int:
        """Copy a gradient into the bucket, flushing it first if there is no room."""
        most = self.held + tensor.elements
        if self._filled + tensor.elements > self._bucket:
            most = self._flush() + tensor.elements
        if tensor.elements > self._bucket:
            most = max(most, self.held + (2 if self._sending else 1) * tensor.elements)
            self._waits = tensor.elements
            self.held += tensor.elements
        self._filled += tensor.elements
        self._first -= tensor.elements
        self._sizes.append(tensor.elements)
        return most

    def end(self) -> int:
        """Flush what is left."""
        return self._flush()

    def _flush(self) -> int:
        most = self.held + self._parts.copied(self._first, self._last, self._bucket)
        is_own = bool(self._sizes) and self._parts.is_own(self._first, self._last)
        if is_own and self._sending:
            largest = self._parts.largest_slice(self._sizes, self._last)
            most = max(most, self.held - self._stays + self._sending.norm * largest)
            self._stays += self._waits if self._sending.adds_up else 0
            self._waits = 0 if self._sending.adds_up else self._waits
        elif is_own and not self._has_own:
            self._has_own = True
            self.held += self._parts.touched
            most = max(most, self.held)
        self.held -= self._waits
        self._filled, self._waits, self._last, self._sizes = 0, 0, self._first, []
        return most


class ScatteredAsTheyCome:
    """Stage 3: of a flushed bucket each rank adds its slices to the parts that it has of every tensor.

    They are put end to end, each padded to equal slices, unless it is one alone that divides evenly
    (runtime/comm/coalesced_collectives.py, `reduce_scatter_coalesced`, 80). Sent to the host, a part comes back before
    its norm is taken (stage3.py, 2006).
    """

    def __init__(self, ranks: int, bucket: int, sending: Sending | None) -> None:
        self.held = 0
        self._ranks, self._bucket, self._sending = ranks, bucket, sending
        self._filled = self._waits = 0
        self._sizes: list[int] = []

    def hook(self, tensor: Tensor) -> int:
        """Copy a gradient into the bucket, flushing it first if there is no room."""
        most = self.held + tensor.elements
        if self._sizes and self._filled + tensor.elements > self._bucket:
            most = self._flush() + tensor.elements
        if tensor.elements > self._bucket:
            self._waits = tensor.elements
            self.held += tensor.elements
        self._sizes.append(tensor.elements)
        self._filled += tensor.elements
        return max(most, self.held)

    def end(self) -> int:
        """Flush what is left."""
        return self._flush()

    def _flush(self) -> int:
        padded = sum(-(-size // self._ranks) * self._ranks for size in self._sizes)
        is_alone = len(self._sizes) == 1 and padded == self._sizes[0]
        most = self.held + (0 if is_alone else padded)
        if self._sending and self._sizes:
            largest = -(-max(self._sizes) // self._ranks)
            most += largest + max(self._sending.norm * min(largest, NORM_AT_ONCE), self._sending.cast * largest)
            most += self._sending.all_at_once * padded // self._ranks
        self.held -= self._waits
        self._sizes, self._filled, self._waits = [], 0, 0
        return most


def whole_at_boundary(tensors: Iterable[Tensor]) -> int:
    """Return the largest copy of stage 0: gradients end to end until they are more than so many elements."""
    runs = runs_beyond([tensor.elements for tensor in tensors], REDUCED_AT_ONCE)
    return max((sum(run) for run in runs if len(run) > 1), default=0)


def runs_beyond(sizes: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Yield sizes in runs of which each ends as its sum exceeds a limit."""
    run: list[int] = []
    elements = 0
    for size in sizes:
        run.append(size)
        elements += size
        if elements > limit:
            yield run
            run, elements = [], 0
    if run:
        yield run


def divided_at_boundary(tensors: Sequence[Tensor], parts: Parts, bucket: int, sending: Sending | None) -> int:
    """Return the most gradients and copies of stage 1 as the step's last micro-batch ends, beside the bucket.

    All are there; each is copied into the bucket and let go of, the embedding's first. An oversized one of no rank's
    own part stays to the end (stage_1_and_2.py, 958).
    """
    held = most = sum(tensor.elements for tensor in tensors)
    filled = first = end = waits = 0
    sizes: list[int] = []
    has_own = False
    for tensor in [*tensors, None]:
        if tensor is None or filled + tensor.elements > bucket:
            most = max(most, held + parts.copied(first, end, bucket))
            if sizes and parts.is_own(first, end):
                if sending:
                    most = max(most, held + sending.norm * parts.largest_slice(sizes[::-1], end))
                else:
                    held += 0 if has_own else parts.touched
                has_own, most = True, max(most, held)
                held -= waits
            filled, first, waits, sizes = 0, end, 0, []
        if tensor is not None:
            filled, end = filled + tensor.elements, end + tensor.elements
            waits = tensor.elements if tensor.elements > bucket else 0
            most = max(most, held + (waits if sending else 0))
            held -= 0 if waits else tensor.elements
            sizes.append(tensor.elements)
    return most
