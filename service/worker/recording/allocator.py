"""A model of torch's CUDA caching allocator: live tensors to reserved memory.

Source: c10/cuda/CUDACachingAllocator.cpp of torch 2.13, with its default
settings (no `max_split_size`, no `roundup_power2_divisions`, no garbage
collection threshold). The model keeps the addresses within a segment, because
which neighbours can merge decides how much is reserved.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from itertools import count

from plimsoll.planners.ground.units import MIB
from plimsoll.service.worker.recording.ledger import ALLOCATION_GRAIN_BYTES, Event, rounded_bytes

# Names and values as in the source above.
SMALL_SIZE_BYTES = 1 * MIB  # kSmallSize: the largest request of the small pool
SMALL_SEGMENT_BYTES = 2 * MIB  # kSmallBuffer
LARGE_SEGMENT_BYTES = 20 * MIB  # large_segment_size: for requests of 1 to 10 MiB
MIN_LARGE_REQUEST_BYTES = 10 * MIB  # kMinLargeAlloc: from here a segment of its own
LARGE_ROUNDING_BYTES = 2 * MIB  # kRoundLarge: what such a segment is rounded up to

# With expandable segments each pool and stream has one segment, which grows by
# pages: kSmallBuffer for the small pool, kLargeBuffer for the large one.
EXPANDABLE_SMALL_PAGE_BYTES = SMALL_SEGMENT_BYTES
EXPANDABLE_LARGE_PAGE_BYTES = LARGE_SEGMENT_BYTES


class OutOfMemory(Exception):
    """The replayed allocations do not fit the capacity, even after empty segments were given back."""

    def __init__(self, *, wanted_bytes: int, reserved_bytes: int, allocated_bytes: int) -> None:
        super().__init__(f"{wanted_bytes} bytes more than {reserved_bytes} reserved ({allocated_bytes} allocated)")
        self.wanted_bytes = wanted_bytes
        self.reserved_bytes = reserved_bytes
        self.allocated_bytes = allocated_bytes


@dataclass(slots=True, eq=False)
class Block:
    """A stretch of a segment, in use or free, linked to its neighbours."""

    pool: tuple[bool, int]
    segment: int
    address: int
    size_bytes: int
    is_free: bool = True
    before: Block | None = None
    after: Block | None = None

    @property
    def order(self) -> tuple[int, int, int]:
        """Return the order in which free blocks are tried: smallest, then lowest."""
        return (self.size_bytes, self.segment, self.address)

    @property
    def is_whole_segment(self) -> bool:
        """Return whether nothing else lies in the segment."""
        return self.before is None and self.after is None


@dataclass(slots=True)
class CachingAllocator:
    """The allocator's state while a trace is replayed.

    `capacity_bytes` limits what may be reserved: when it would be passed, free
    whole segments are given back first, as the allocator does before it fails.
    """

    expandable_segments: bool = False
    capacity_bytes: int | None = None
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    segments: int = 0
    retries: int = 0
    _free: dict[tuple[bool, int], list[Block]] = field(default_factory=dict)
    _in_use: dict[int, Block] = field(default_factory=dict)
    _ends: dict[tuple[bool, int], Block] = field(default_factory=dict)
    _segment_numbers: count[int] = field(default_factory=count)

    def allocate(self, number: int, requested_bytes: int, *, stream: int = 0) -> None:
        """Place a request; an empty one takes nothing."""
        if requested_bytes == 0:
            return
        size_bytes = rounded_bytes(requested_bytes)
        pool = (size_bytes <= SMALL_SIZE_BYTES, stream)
        block = self._take_best_fit(pool, size_bytes)
        if block is None:
            block = (
                self._grown_block(pool, size_bytes) if self.expandable_segments else self._new_segment(pool, size_bytes)
            )
        if self._should_split(block, size_bytes):
            self._split(block, size_bytes)
        block.is_free = False
        self._in_use[number] = block
        self.allocated_bytes += block.size_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)

    def release(self, number: int) -> None:
        """Free a request's block and merge it with free neighbours."""
        block = self._in_use.pop(number, None)
        if block is None:  # an empty request took none
            return
        self.allocated_bytes -= block.size_bytes
        block.is_free = True
        if block.before is not None and block.before.is_free:
            self._remove_free(block.before)
            block = self._merged(block.before, block)
        if block.after is not None and block.after.is_free:
            self._remove_free(block.after)
            block = self._merged(block, block.after)
        self._add_free(block)

    def _take_best_fit(self, pool: tuple[bool, int], size_bytes: int) -> Block | None:
        free = self._free.get(pool, [])
        index = bisect.bisect_left(free, (size_bytes, -1, -1), key=lambda block: block.order)
        return free.pop(index) if index < len(free) else None

    def _new_segment(self, pool: tuple[bool, int], size_bytes: int) -> Block:
        segment_bytes = new_segment_bytes(size_bytes)
        self._reserve(segment_bytes)
        self.segments += 1
        return Block(pool=pool, segment=next(self._segment_numbers), address=0, size_bytes=segment_bytes)

    def _grown_block(self, pool: tuple[bool, int], size_bytes: int) -> Block:
        """Return a free block at the end of the pool's one segment, mapped far enough."""
        end = self._ends.get(pool)
        if end is None:
            self.segments += 1
            end = Block(pool=pool, segment=next(self._segment_numbers), address=0, size_bytes=0)
            tail = end
        elif end.is_free:
            self._remove_free(end)
            tail = end
        else:
            tail = Block(pool=pool, segment=end.segment, address=end.address + end.size_bytes, size_bytes=0, before=end)
            end.after = tail
        page_bytes = EXPANDABLE_SMALL_PAGE_BYTES if pool[0] else EXPANDABLE_LARGE_PAGE_BYTES
        missing_bytes = size_bytes - tail.size_bytes
        mapped_bytes = -(-missing_bytes // page_bytes) * page_bytes
        self._reserve(mapped_bytes)
        tail.size_bytes += mapped_bytes
        self._ends[pool] = tail
        return tail

    def _reserve(self, size_bytes: int) -> None:
        if self.capacity_bytes is not None and self.reserved_bytes + size_bytes > self.capacity_bytes:
            self.retries += 1
            self._give_back_empty_segments()
            if self.reserved_bytes + size_bytes > self.capacity_bytes:
                raise OutOfMemory(
                    wanted_bytes=size_bytes, reserved_bytes=self.reserved_bytes, allocated_bytes=self.allocated_bytes
                )
        self.reserved_bytes += size_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _give_back_empty_segments(self) -> None:
        for free in self._free.values():
            for block in [block for block in free if block.is_whole_segment]:
                free.remove(block)
                self.reserved_bytes -= block.size_bytes
                if self._ends.get(block.pool) is block:
                    del self._ends[block.pool]

    def _should_split(self, block: Block, size_bytes: int) -> bool:
        """Return whether the rest is worth keeping: `should_split` of the source.

        The small pool keeps any rest of 512 bytes, the large one more than 1 MiB;
        expandable segments split always.
        """
        rest_bytes = block.size_bytes - size_bytes
        if block.pool[0] or self.expandable_segments:
            return rest_bytes >= ALLOCATION_GRAIN_BYTES
        return rest_bytes > SMALL_SIZE_BYTES

    def _split(self, block: Block, size_bytes: int) -> None:
        rest = Block(
            pool=block.pool,
            segment=block.segment,
            address=block.address + size_bytes,
            size_bytes=block.size_bytes - size_bytes,
            before=block,
            after=block.after,
        )
        if block.after is not None:
            block.after.before = rest
        block.after = rest
        block.size_bytes = size_bytes
        if self._ends.get(block.pool) is block:
            self._ends[block.pool] = rest
        self._add_free(rest)

    def _merged(self, first: Block, second: Block) -> Block:
        first.size_bytes += second.size_bytes
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        if self._ends.get(second.pool) is second:
            self._ends[second.pool] = first
        return first

    def _add_free(self, block: Block) -> None:
        block.is_free = True
        bisect.insort(self._free.setdefault(block.pool, []), block, key=lambda item: item.order)

    def _remove_free(self, block: Block) -> None:
        free = self._free[block.pool]
        del free[bisect.bisect_left(free, block.order, key=lambda item: item.order)]


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
    events: list[Event], *, expandable_segments: bool = False, capacity_bytes: int | None = None
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
