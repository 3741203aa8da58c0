"""A pool of blocks that all of a rank's layers draw from."""

from __future__ import annotations

from abc import ABC, abstractmethod

from plimsoll.planners.serving.cache.pools import UNBOUNDED, Pools
from plimsoll.planners.serving.releases.profile import EngineProfile


class BlockPool(ABC):
    """The one pool of a cache laid out in blocks; how large a block is, the layout says."""

    __slots__ = ()
    profile: EngineProfile

    @abstractmethod
    def stage_block_bytes(self, layers: range) -> int:
        """Return what one block takes on a stage."""

    def pools(self, available_bytes: int, layers: range) -> Pools:
        """Return the blocks a stage makes of its budget; one whose layers keep no cache sets no bound."""
        block_bytes = self.stage_block_bytes(layers)
        return (available_bytes // block_bytes if block_bytes else UNBOUNDED,)

    def pool_bytes(self, pools: Pools, layers: range) -> int:
        """Return what so many blocks take on a stage."""
        return pools[0] * self.stage_block_bytes(layers)

    def usable(self, pools: Pools) -> Pools:
        """Return the blocks requests may have."""
        return (usable_blocks(pools[0], self.profile),)


def usable_blocks(blocks: int, profile: EngineProfile) -> int:
    """Return the blocks requests may have, by this version's own check."""
    return max(0, blocks - 1) if profile.subtracts_null_block else blocks
