"""A model of torch's CUDA caching allocator: live tensors to reserved memory.

Source: c10/cuda/CUDACachingAllocator.cpp of torch 2.13, with its default
settings (no `max_split_size`, no `roundup_power2_divisions`, no garbage
collection threshold). The model keeps the addresses within a segment, because
which neighbours can merge decides how much is reserved.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from plimsoll.planners.ground.units import MIB
from plimsoll.service.worker.recording.allocator_blocks import Block, FreeBlocks, PoolKey
from plimsoll.service.worker.recording.expandable_segments import ExpandableSegments
from plimsoll.service.worker.recording.ledger import ALLOCATION_GRAIN_BYTES, Event, rounded_bytes

# Names and values as in c10/core/AllocatorConfig.h.
SMALL_SIZE_BYTES = 1 * MIB  # kSmallSize: the largest request of the small pool
SMALL_SEGMENT_BYTES = 2 * MIB  # kSmallBuffer
LARGE_SEGMENT_BYTES = 20 * MIB  # large_segment_size: for requests of 1 to 10 MiB
MIN_LARGE_REQUEST_BYTES = 10 * MIB  # kMinLargeAlloc: from here a segment of its own
LARGE_ROUNDING_BYTES = 2 * MIB  # kRoundLarge: what such a segment is rounded up to


class OutOfMemory(Exception):
    """The replayed allocations do not fit the capacity, even after free segments or pages were given back."""

    def __init__(self, *, wanted_bytes: int, reserved_bytes: int, allocated_bytes: int) -> None:
        super().__init__(f"{wanted_bytes} bytes more than {reserved_bytes} reserved ({allocated_bytes} allocated)")
        self.wanted_bytes = wanted_bytes
        self.reserved_bytes = reserved_bytes
        self.allocated_bytes = allocated_bytes


@dataclass(slots=True)
class CachingAllocator:
    """The allocator's state while a trace is replayed.

    `capacity_bytes` limits what may be reserved: when it would be passed, what is free is given back first, as the
    allocator does before it fails: whole segments, or pages of those that are expandable.
    """

    expandable_segments: bool = False
    capacity_bytes: int | None = None
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    retries: int = 0
    _free: FreeBlocks = field(default_factory=FreeBlocks)
    _in_use: dict[int, Block] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=count)
    _fixed_segments: int = 0
    _expandable: ExpandableSegments = field(init=False)

    def __post_init__(self) -> None:
        self._expandable = ExpandableSegments(self._free, self._reserve)

    @property
    def segments(self) -> int:
        """Return how many segments were ever made."""
        return self._fixed_segments + self._expandable.segments

    def allocate(self, number: int, requested_bytes: int, *, stream: int = 0) -> None:
        """Place a request; an empty one takes nothing.

        Raises `OutOfMemory` where the capacity has no room for it.
        """
        if requested_bytes == 0:
            return
        size_bytes = rounded_bytes(requested_bytes)
        pool = PoolKey(is_small=size_bytes <= SMALL_SIZE_BYTES, stream=stream)
        block = self._free.take_best_fit(pool, size_bytes) or self._new_block(pool, size_bytes)
        block.is_free = False
        if self._should_split(block, size_bytes):
            self._free.add(block.cut_off(size_bytes))
        self._in_use[number] = block
        self.allocated_bytes += block.size_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)

    def release(self, number: int) -> None:
        """Free a request's block and merge it with free neighbours."""
        block = self._in_use.pop(number, None)
        if block is None:  # an empty request took none
            return
        self.allocated_bytes -= block.size_bytes
        self._free.add(block)

    def _new_block(self, pool: PoolKey, size_bytes: int) -> Block:
        """Return a free block out of memory that is reserved for it, after giving some back if there is no room."""
        take = self._expandable.take_grown if self.expandable_segments else self._new_segment
        try:
            return take(pool, size_bytes)
        except OutOfMemory:
            self.retries += 1
            self._give_back()
            return take(pool, size_bytes)

    def _new_segment(self, pool: PoolKey, size_bytes: int) -> Block:
        segment_bytes = new_segment_bytes(size_bytes)
        self._reserve(segment_bytes)
        self._fixed_segments += 1
        return Block(pool=pool, segment=next(self._numbers), address=0, size_bytes=segment_bytes)

    def _reserve(self, size_bytes: int) -> None:
        if self.capacity_bytes is not None and self.reserved_bytes + size_bytes > self.capacity_bytes:
            raise OutOfMemory(
                wanted_bytes=size_bytes, reserved_bytes=self.reserved_bytes, allocated_bytes=self.allocated_bytes
            )
        self.reserved_bytes += size_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _give_back(self) -> None:
        if self.expandable_segments:
            self.reserved_bytes -= self._expandable.unmap_free_pages()
            return
        for block in self._free.every():
            if block.is_whole_segment:
                self._free.remove(block)
                self.reserved_bytes -= block.size_bytes

    def _should_split(self, block: Block, size_bytes: int) -> bool:
        """Return whether the rest is worth keeping: `should_split` of the source.

        The small pool keeps any rest of 512 bytes, the large one more than 1 MiB;
        expandable segments split always.
        """
        rest_bytes = block.size_bytes - size_bytes
        if block.pool.is_small or self.expandable_segments:
            return rest_bytes >= ALLOCATION_GRAIN_BYTES
        return rest_bytes > SMALL_SIZE_BYTES


def new_segment_bytes(size_bytes: int) -> int:
    """Return how much is reserved for a rounded request that finds no free block.

    Source: `get_allocation_size`.
    """
    if size_bytes <= SMALL_SIZE_BYTES:
        return SMALL_SEGMENT_BYTES
    if size_bytes < MIN_LARGE_REQUEST_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-size_bytes // LARGE_ROUNDING_BYTES) * LARGE_ROUNDING_BYTES


def replay(
    events: Iterable[Event], *, expandable_segments: bool = False, capacity_bytes: int | None = None
) -> CachingAllocator:
    """Return the allocator after every event of the device's memory, with its peaks.

    Raises `OutOfMemory` when `capacity_bytes` cannot hold them.
    """
    allocator = CachingAllocator(expandable_segments=expandable_segments, capacity_bytes=capacity_bytes)
    for event in events:
        piece = event.piece
        if piece.on_host:
            continue
        if event.is_release:
            allocator.release(piece.number)
        else:
            allocator.allocate(piece.number, piece.requested_bytes, stream=piece.stream)
    return allocator
