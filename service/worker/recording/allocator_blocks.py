"""Blocks of the caching allocator's segments, and which of them are free: how they are found, split and merged.

Source: c10/cuda/CUDACachingAllocator.cpp of torch 2.13 (`BlockPool`, `get_free_block`, `try_merge_blocks`).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


class PoolKey(NamedTuple):
    """Whose blocks are handed out again together: small requests of one stream, or large ones."""

    is_small: bool
    stream: int


@dataclass(slots=True, eq=False)
class Block:
    """A stretch of a segment, in use or free, linked to its neighbours.

    One that is not mapped is address space alone, which an expandable segment may grow into.
    """

    pool: PoolKey
    segment: int
    address: int
    size_bytes: int
    is_free: bool = True
    is_mapped: bool = True
    before: Block | None = None
    after: Block | None = None

    @property
    def order(self) -> tuple[int, int, int]:
        """Return the order in which free blocks are tried: smallest, then lowest."""
        return (self.size_bytes, self.segment, self.address)

    @property
    def place(self) -> tuple[int, int]:
        """Return where it begins."""
        return (self.segment, self.address)

    @property
    def is_whole_segment(self) -> bool:
        """Return whether nothing else lies in the segment."""
        return self.before is None and self.after is None

    @property
    def expandable_bytes(self) -> int:
        """Return how large it may become where the segment can grow behind it."""
        behind = self.after
        return self.size_bytes + (behind.size_bytes if behind is not None and not behind.is_mapped else 0)

    def cut_off(self, size_bytes: int) -> Block:
        """Keep so many bytes and return the rest as a block of its own, as free and as mapped."""
        rest = Block(
            pool=self.pool,
            segment=self.segment,
            address=self.address + size_bytes,
            size_bytes=self.size_bytes - size_bytes,
            is_free=self.is_free,
            is_mapped=self.is_mapped,
            before=self,
            after=self.after,
        )
        if self.after is not None:
            self.after.before = rest
        self.after = rest
        self.size_bytes = size_bytes
        return rest

    def take_in(self, following: Block) -> None:
        """Become one with the block behind it."""
        self.size_bytes += following.size_bytes
        self.after = following.after
        if following.after is not None:
            following.after.before = self


@dataclass(slots=True)
class FreeBlocks:
    """The free, mapped blocks of every pool in the order in which they are tried."""

    _of_pool: dict[PoolKey, list[Block]] = field(default_factory=dict)

    def every(self) -> Iterator[Block]:
        """Yield all of them; they may be removed meanwhile."""
        for blocks in self._of_pool.values():
            yield from tuple(blocks)

    def add(self, block: Block) -> Block:
        """Add a block, merged with its free neighbours; return what it has become."""
        block.is_free = True
        before, behind = block.before, block.after
        if before is not None and before.is_free and before.is_mapped:
            self.remove(before)
            before.take_in(block)
            block = before
        if behind is not None and behind.is_free and behind.is_mapped:
            self.remove(behind)
            block.take_in(behind)
        bisect.insort(self._of_pool.setdefault(block.pool, []), block, key=lambda item: item.order)
        return block

    def remove(self, block: Block) -> None:
        """Take a block out."""
        blocks = self._of_pool[block.pool]
        del blocks[bisect.bisect_left(blocks, block.order, key=lambda item: item.order)]

    def take_best_fit(self, pool: PoolKey, size_bytes: int) -> Block | None:
        """Take the smallest block that is large enough; None if there is none.

        One that the segment can grow behind counts as large as it may become.
        """
        blocks = self._of_pool.get(pool, [])
        index = bisect.bisect_left(blocks, (size_bytes, -1, -1), key=lambda block: block.order)
        if index == len(blocks):
            return None
        while index + 1 < len(blocks) and blocks[index + 1].expandable_bytes < blocks[index].expandable_bytes:
            index += 1
        return blocks.pop(index)
