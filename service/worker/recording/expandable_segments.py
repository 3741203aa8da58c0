"""Segments that grow page by page: `expandable_segments:True` of torch's caching allocator.

Source: c10/cuda/CUDACachingAllocator.cpp of torch 2.13 (`find_expandable_block`, `map_block`, `unmap_block`).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from plimsoll.planners.ground.units import MIB
from plimsoll.service.worker.recording.allocator_blocks import Block, FreeBlocks, PoolKey

SMALL_PAGE_BYTES = 2 * MIB  # kSmallBuffer
LARGE_PAGE_BYTES = 20 * MIB  # kLargeBuffer
# More than any device has; torch takes 9/8 of the device's memory, in the address space alone.
SEGMENT_ADDRESSES = 2**50


@dataclass(slots=True)
class ExpandableSegments:
    """The address space of every pool's segments that is not mapped, and what maps it.

    `reserve` is told of pages before they are mapped, and raises where there is no room for them.
    """

    free: FreeBlocks
    reserve: Callable[[int], None]
    segments: int = 0
    _unmapped: dict[PoolKey, list[Block]] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=count)

    def take_grown(self, pool: PoolKey, size_bytes: int) -> Block:
        """Map the lowest address space that has room for a request, and take the free block that it becomes."""
        block = self._lowest_with_room(pool, size_bytes)
        if not block.is_mapped:
            block = self._map(block, min(block.size_bytes, size_bytes))
        while block.size_bytes < size_bytes:
            behind = block.after
            if behind is None:
                raise ValueError("A segment ends before the room that was found in it.")
            block = self._map(behind, min(behind.size_bytes, size_bytes - block.size_bytes))
        self.free.remove(block)
        return block

    def unmap_free_pages(self) -> int:
        """Unmap every page that no block in use lies on, and return their bytes."""
        return sum(self._unmap(block) for block in self.free.every())

    def _lowest_with_room(self, pool: PoolKey, size_bytes: int) -> Block:
        for unmapped in self._unmapped.get(pool, []):
            before = unmapped.before
            block = before if before is not None and before.is_free else unmapped
            if _room_from(block, size_bytes) >= size_bytes:
                return block
        self.segments += 1
        space = Block(pool=pool, segment=next(self._numbers), address=0, size_bytes=SEGMENT_ADDRESSES, is_mapped=False)
        self._add_unmapped(space)
        return space

    def _map(self, block: Block, size_bytes: int) -> Block:
        """Map the first pages of address space; return the free block that they are part of."""
        page_bytes = _page_bytes(block.pool)
        mapped_bytes = -(-size_bytes // page_bytes) * page_bytes
        self.reserve(mapped_bytes)
        self._unmapped[block.pool].remove(block)
        behind = block.cut_off(mapped_bytes) if mapped_bytes < block.size_bytes else None
        block.is_mapped = True
        if behind is not None:
            self._add_unmapped(behind)
        return self.free.add(block)

    def _unmap(self, block: Block) -> int:
        """Unmap the whole pages of a free block, and return their bytes."""
        page_bytes = _page_bytes(block.pool)
        first = -(-block.address // page_bytes) * page_bytes
        end = (block.address + block.size_bytes) // page_bytes * page_bytes
        if end <= first:
            return 0
        self.free.remove(block)
        pages = block.cut_off(first - block.address) if first > block.address else block
        behind = pages.cut_off(end - first) if pages.size_bytes > end - first else None
        pages.is_mapped = False
        for kept in (block, behind):
            if kept is not None and kept is not pages:
                self.free.add(kept)
        self._add_unmapped(pages)
        return end - first

    def _add_unmapped(self, block: Block) -> None:
        """Keep address space, merged with what is not mapped around it, in the order of addresses."""
        spaces = self._unmapped.setdefault(block.pool, [])
        before, behind = block.before, block.after
        if before is not None and not before.is_mapped:
            spaces.remove(before)
            before.take_in(block)
            block = before
        if behind is not None and not behind.is_mapped:
            spaces.remove(behind)
            block.take_in(behind)
        bisect.insort(spaces, block, key=lambda item: item.place)


def _room_from(block: Block | None, enough_bytes: int) -> int:
    """Return the bytes of a block and those behind it that are not in use; no more are counted than are enough."""
    room = 0
    while block is not None and block.is_free and room < enough_bytes:
        room += block.size_bytes
        block = block.after
    return room


def _page_bytes(pool: PoolKey) -> int:
    return SMALL_PAGE_BYTES if pool.is_small else LARGE_PAGE_BYTES
