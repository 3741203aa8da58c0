"""What all engines' caches have in common: pools of units, and what a request takes of each.

A pool's unit is a block, a page of tokens, a sequence's state or a byte, as the
engine hands it out. Every tuple here has one entry for each pool.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import sub
from typing import Protocol, TypeAlias

from plimsoll.planners.architecture import Block, KvKind, KvState, ModelSpec
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.serving.releases.profile import EngineProfile

Pools: TypeAlias = tuple[int, ...]
# More units than any card has; for a stage of layers that keep no cache.
UNBOUNDED = 2**62
# Kinds of which a request needs no more than the last tokens.
WINDOWED = frozenset({KvKind.SLIDING_WINDOW, KvKind.CHUNKED_LOCAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Layers that cache alike: their indices, a page's bytes on one rank, and the tokens it holds.

    `bytes_per_token` is 0 for a recurrent layer, whose page is one sequence's state;
    `whole_bytes_per_token` is the same before parallelism where the cache's own layout tells it.
    """

    state: KvState
    layers: tuple[int, ...]
    bytes_per_token: int
    page_bytes: int
    block_size: int
    whole_bytes_per_token: int | None = None

    def layers_within(self, layers: range) -> int:
        """Return how many of its layers lie in a stage."""
        return bisect_left(self.layers, layers.stop) - bisect_left(self.layers, layers.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What pools hold, in the engine's words; `blocks` are those of the pool that grows with every token."""

    blocks: int
    tokens: int
    max_concurrency: float
    fits_one_request: bool


class Cache(Protocol):
    """One rank's cache, as its engine lays it out."""

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Return the layers by how they cache."""

    @property
    def block_size(self) -> int:
        """Return the tokens of the smallest block."""

    @property
    def source_tokens(self) -> int:
        """Return the tokens that a request's encoder hands over, 0 without one."""

    def notes(self, profile: EngineProfile) -> tuple[str, ...]:
        """Return what a reader must know of how it is divided."""

    def pools(self, available_bytes: int, layers: range) -> Pools:
        """Return the units that a stage makes of its budget."""

    def pool_bytes(self, pools: Pools, layers: range) -> int:
        """Return what so many units take on a stage."""

    def usable(self, pools: Pools) -> Pools:
        """Return the units that requests may have."""

    def capacity(self, pools: Pools, *, max_model_len: int) -> Capacity:
        """Return what the pools hold, as the engine says it."""

    def set_aside(self, tokens: int) -> Pools:
        """Return what the engine keeps for one request of `tokens` at its longest."""

    def held(self, tokens: int) -> Pools:
        """Return what a running request of `tokens` takes between two steps."""

    def filling(self, tokens: int) -> Pools:
        """Return what one takes at most while its prompt is computed: what leaves a window is freed after a step."""

    def slots_held(self, tokens: int) -> tuple[int, int]:
        """Return the token slots that a request takes in caches that grow, and how many stay empty."""


def least(pools: Sequence[Pools]) -> Pools:
    """Return what the stages of a pipeline have in common: a request takes of all of them alike."""
    return pools[0] if len(pools) == 1 else tuple(map(min, zip(*pools, strict=True)))


def concurrency(pools: Pools, needs: Pools) -> float:
    """Return how many requests that take `needs` the pools hold, in parts of one too."""
    return min(have / need for have, need in zip(pools, needs, strict=True) if need)


def holds(pools: Pools, needs: Pools) -> bool:
    """Return whether the pools have what a request needs."""
    return all(have >= need for have, need in zip(pools, needs, strict=True))


def shared(cache: Cache, pools: Pools, lengths: Iterable[int]) -> Pools:
    """Return the units that requests of these tokens share, besides what the prompt of one takes more in its step."""
    more = [tuple(map(sub, cache.filling(tokens), cache.held(tokens))) for tokens in lengths]
    return tuple(max(0, have - max(own)) for have, *own in zip(cache.usable(pools), *more, strict=True))


def requests_held(pools: Pools, needs: Sequence[Pools]) -> int:
    """Return how many requests the pools hold that each take one of `needs` for an equal part of them."""
    return requests_running(pools, [(each, 1) for each in needs])


def requests_running(pools: Pools, needs: Sequence[tuple[Pools, int]]) -> int:
    """Return how many requests run in the pools at once, of which each of `needs` is taken for so many steps."""
    whole = sum(steps for _, steps in needs)
    totals = [sum(units[pool] * steps for units, steps in needs) for pool in range(len(pools))]
    return min(have * whole // total for have, total in zip(pools, totals, strict=True) if total)


def caching_blocks(model: ModelSpec) -> tuple[Block, ...]:
    """Return the blocks with a cache of their own; layers that borrow another's, or do not mix tokens, have none.

    Raises `InvalidQuestion` for an encoder, which generates nothing.
    """
    blocks = tuple(block for block in model.layers if block.kv is not None or block.cross is not None)
    if not blocks:
        raise InvalidQuestion(
            f"{model.name} keeps no cache: it is an encoder, which generates nothing.", pointer="/model"
        )
    return blocks


def states_of(blocks: Sequence[Block]) -> dict[KvState, list[Block]]:
    """Return the blocks by what they cache, of their own sequence and of an encoder's."""
    by_state: dict[KvState, list[Block]] = {}
    for block in blocks:
        for state in (block.kv, block.cross):
            if state is not None:
                by_state.setdefault(state, []).append(block)
    return by_state


def layer_indices(blocks: Sequence[Block]) -> tuple[int, ...]:
    """Return the indices of all layers of the blocks, in order."""
    return tuple(sorted(layer for block in blocks for layer in block.layers))
