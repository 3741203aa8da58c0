"""Caches of SGLang and TensorRT-LLM: a pool of pages for all tokens, and pools of windows and of states beside it.

SGLang gives layers with windows a pool of their own where it knows the model's
kind, of a fixed part of the other pool's tokens; elsewhere they keep every token.
Recurrent states have a fixed part of the memory, and a request takes several of
them: its own, and those that the prefix cache keeps of it. TensorRT-LLM keeps
every token of every layer unless told otherwise (`max_attention_window`), and one
state for each request of the largest batch.

Sources: sglang 0.5.23, model_executor/pool_configurator.py and
mem_cache/kv_cache_configurator.py (_handle_max_mamba_cache); TensorRT-LLM,
_torch/pyexecutor/resource_manager.py (max_attention_window_vec,
_calculate_max_num_blocks_for_linear_attention).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from plimsoll.planners.architecture import Block, KvKind, KvState, ModelSpec
from plimsoll.planners.ground.figures import figure
from plimsoll.planners.serving.cache.kv_formats import CacheTerms, layer_bytes_per_token, sequence_state_bytes
from plimsoll.planners.serving.cache.pools import (
    UNBOUNDED,
    WINDOWED,
    Bucket,
    Capacity,
    Pools,
    caching_blocks,
    concurrency,
    holds,
    layer_indices,
    states_of,
)
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.releases.profile import EngineProfile
from plimsoll.planners.serving.releases.rules import TokenPoolRules


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPools:
    """Pages of every token, and where there are such layers those of windows and of an encoder's output, and states.

    `states_per_request` are those that a request takes, `draft_tokens` as many more
    while it is verified. Where `batch_states` is given it is the number of states; else
    `rules` say which part of the memory they take. An encoder's `source_tokens` take
    slots of all tokens where `crossing` is empty. `drops_windows` is true where layers
    with windows keep every token.
    """

    growing: tuple[Bucket, ...]
    windowed: tuple[Bucket, ...]
    crossing: tuple[Bucket, ...]
    recurrent: tuple[Bucket, ...]
    rules: TokenPoolRules
    block_size: int
    states_per_request: int
    draft_tokens: int
    batch_states: int | None
    source_tokens: int
    drops_windows: bool

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Return the layers by how they cache."""
        return (*self.growing, *self.windowed, *self.crossing, *self.recurrent)

    def notes(self, profile: EngineProfile) -> tuple[str, ...]:
        """Return how the memory is shared out, and what keeps more than it needs."""
        notes = []
        if self.growing and self.windowed:
            part = self.rules.window_tokens_fraction
            notes.append(
                f"Sliding-window layers have a pool of {figure(part)} x the other layers' tokens "
                "(swa_full_tokens_ratio)."
            )
        if self.drops_windows:
            notes.append(
                f"{profile.engine} {profile.version} has no pool for this model's windows by default: all its layers "
                "keep every token."
            )
        if self.recurrent and self.batch_states is None:
            notes.append(
                f"Recurrent states have {figure(self.rules.states_to_tokens)} x the tokens' memory "
                f"(mamba_full_memory_ratio); a request takes {self.states_per_request} of them, its own and the "
                "prefix cache's."
            )
        elif self.recurrent:
            notes.append("A recurrent state for every request of max_num_seqs is allocated at the start.")
        return tuple(notes)

    def pools(self, available_bytes: int, layers: range) -> Pools:
        """Return the units that a stage makes of its budget.

        SGLang solves mamba_state_memory / full_kv_cache_memory = mamba_full_memory_ratio
        and swa_tokens / full_tokens = swa_full_tokens_ratio. TensorRT-LLM cuts
        cross_kv_cache_fraction off first.
        """
        crossing = int(available_bytes * self.rules.cross_fraction) if self.crossing else 0
        states = self._states(available_bytes - crossing, layers)
        rest = max(0, available_bytes - crossing - self._state_memory(states, layers))
        first = self._pages(rest, layers)
        return tuple(self._units(first, _pages(crossing, self._page_bytes(self.crossing, layers)), states))

    def _pages(self, rest: int, layers: range) -> int:
        first, windows = self._page_bytes(self.growing, layers), self._page_bytes(self.windowed, layers)
        if not self.growing:
            return _pages(rest, windows)
        return _pages(rest, first + self.rules.window_tokens_fraction * windows)

    def _units(self, pages: int, crossing: int, states: int) -> Iterator[int]:
        yield pages
        if self.growing and self.windowed:
            yield int(pages * self.block_size * self.rules.window_tokens_fraction) // self.block_size
        if self.crossing:
            yield crossing
        if self.recurrent:
            yield states

    def _states(self, available_bytes: int, layers: range) -> int:
        each = self._page_bytes(self.recurrent, layers)
        if not each:
            return UNBOUNDED
        if self.batch_states is not None:
            return self.batch_states if available_bytes >= each * self.batch_states else 0
        part = self.rules.states_to_tokens
        budget = available_bytes * part / (1 + part) - each * (self.rules.padding_states + self.draft_tokens)
        return max(0, int(budget // (each * (1 + self.draft_tokens / self.states_per_request))))

    def _state_memory(self, states: int, layers: range) -> int:
        """Return what the states take, those of drafted tokens and of the padding counted."""
        each = self._page_bytes(self.recurrent, layers)
        if not each:
            return 0
        if self.batch_states is not None:
            return each * self.batch_states
        drafted = (states // self.states_per_request + 1) * self.draft_tokens if self.draft_tokens else 0
        return each * (states + self.rules.padding_states + drafted)

    def pool_bytes(self, pools: Pools, layers: range) -> int:
        """Return what so many units take on a stage; pages of layers that it has none of take nothing."""
        units = iter(pools)
        taken = next(units) * self._page_bytes(self.growing or self.windowed, layers)
        if self.growing and self.windowed:
            taken += next(units) * self._page_bytes(self.windowed, layers)
        if self.crossing:
            taken += next(units) * self._page_bytes(self.crossing, layers)
        return taken + (self._state_memory(next(units), layers) if self.recurrent else 0)

    def usable(self, pools: Pools) -> Pools:
        """Return all units: the padding page and states are allocated besides."""
        return pools

    def capacity(self, pools: Pools, *, max_model_len: int) -> Capacity:
        """Return what the pools hold; the engines log the tokens of the pool of all tokens.

        Where states are all there is, any number of tokens passes them.
        """
        needs = self.set_aside(max_model_len)
        most = concurrency(pools, needs)
        tokens = pools[0] * self.block_size if pools[0] < UNBOUNDED else int(most * max_model_len)
        return Capacity(
            blocks=tokens // self.block_size,
            tokens=tokens,
            max_concurrency=most,
            fits_one_request=holds(pools, needs),
        )

    def set_aside(self, tokens: int) -> Pools:
        """Return what one request of `tokens` takes: nothing is kept for it that it does not fill."""
        return tuple(self._needs(tokens))

    def held(self, tokens: int) -> Pools:
        """Return what a running request of `tokens` takes."""
        return tuple(self._needs(tokens))

    def _needs(self, tokens: int) -> Iterator[int]:
        source = -(-self.source_tokens // self.block_size)
        pages = -(-tokens // self.block_size)
        windows = min(pages, -(-self._window_tokens // self.block_size)) if self.windowed else 0
        yield pages + (0 if self.crossing else source) if self.growing else windows or 1
        if self.growing and self.windowed:
            yield windows
        if self.crossing:
            yield source
        if self.recurrent:
            yield self.states_per_request

    def filling(self, tokens: int) -> Pools:
        """Return the same: a prompt takes no more while it is computed."""
        return self.held(tokens)

    def slots_held(self, tokens: int) -> tuple[int, int]:
        """Return the token slots of the pages of all tokens, and how many stay empty."""
        return -(-tokens // self.block_size) * self.block_size, -tokens % self.block_size

    @property
    def _window_tokens(self) -> int:
        """Return the slots of a window that a request holds: it is freed once in so many steps, in whole pages.

        Source: sglang, pool_configurator.py, compute_swa_request_cap.
        """
        widest = max(bucket.state.window or 0 for bucket in self.windowed)
        return widest + self.rules.window_slack_tokens * max(1, self.draft_tokens) + 2 * self.block_size

    @staticmethod
    def _page_bytes(buckets: Sequence[Bucket], layers: range) -> int:
        """Return one unit's bytes on a stage: a page of each layer, or one sequence's states."""
        return sum(bucket.page_bytes * bucket.layers_within(layers) for bucket in buckets)


def _pages(available_bytes: int, page_bytes: float) -> int:
    return int(available_bytes // page_bytes) if page_bytes else UNBOUNDED


def paged_cache(model: ModelSpec, terms: CacheTerms, degrees: Degrees) -> TokenPools:
    """Return the same at a replica's degrees."""
    return token_pools(model, terms, terms.profile.pools, tensor_parallel=degrees.tensor_parallel)


def token_pools(model: ModelSpec, terms: CacheTerms, rules: TokenPoolRules, *, tensor_parallel: int) -> TokenPools:
    """Return the pools that the engine makes for a model."""
    buckets = tuple(_buckets(model, terms, rules, tensor_parallel))
    windowed, recurrent = _of(buckets, WINDOWED), _of(buckets, {KvKind.RECURRENT})
    encoded = _of(buckets, {KvKind.CROSS_ATTENTION})
    crossing = encoded if rules.cross_fraction else ()
    apart = {*WINDOWED, KvKind.RECURRENT, *(bucket.state.kind for bucket in crossing)}
    buffers = model.model_type in rules.buffered_types
    return TokenPools(
        growing=tuple(bucket for bucket in buckets if bucket.state.kind not in apart),
        windowed=windowed,
        crossing=crossing,
        recurrent=recurrent,
        rules=rules,
        block_size=terms.block_size,
        states_per_request=rules.buffered_states_per_request if buffers else rules.states_per_request,
        draft_tokens=terms.draft_tokens,
        batch_states=None if rules.states_to_tokens else terms.batch_sequences,
        source_tokens=max((terms.tokens_of_source(bucket.state) for bucket in encoded), default=0),
        drops_windows=not windowed and any(state.kind in WINDOWED for state in states_of(model.layers)),
    )


def _of(buckets: Iterable[Bucket], kinds: Iterable[KvKind]) -> tuple[Bucket, ...]:
    return tuple(bucket for bucket in buckets if bucket.state.kind in kinds)


def _buckets(model: ModelSpec, terms: CacheTerms, rules: TokenPoolRules, tensor_parallel: int) -> Iterator[Bucket]:
    latents, block_size = terms.profile.latents, terms.block_size
    has_window_pool = model.model_type in rules.window_types
    kept: dict[KvState, list[Block]] = {}
    for state, alike in states_of(caching_blocks(model)).items():
        kept.setdefault(state if has_window_pool else _without_window(state), []).extend(alike)
    for state, alike in kept.items():
        each = layer_bytes_per_token(state, terms.kv, tensor_parallel=tensor_parallel, latents=latents)
        page = each * block_size
        if state.kind is KvKind.RECURRENT:
            page = max(sequence_state_bytes(block, terms, tensor_parallel, draft_tokens=0) for block in alike)
        yield Bucket(
            state=state, layers=layer_indices(alike), bytes_per_token=each, page_bytes=page, block_size=block_size
        )


def _without_window(state: KvState) -> KvState:
    """Return what a layer keeps where the engine has no pool for its window: every token."""
    if state.kind not in WINDOWED:
        return state
    return dataclasses.replace(state, kind=KvKind.FULL_ATTENTION, window=None)
