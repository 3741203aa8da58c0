"""The cache of `transformers`: no pool, tensors that belong to a batch of sequences.

A dynamic cache grows with its sequences, a static one is allocated for the longest
at once; windows and states stay of one size in both.

Source: `transformers` 5.23, cache_utils.py: DynamicLayer, DynamicSlidingWindowLayer,
StaticLayer, StaticSlidingWindowLayer, LinearAttentionLayer, EncoderDecoderCache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plimsoll.planners.architecture import Block, KvKind, KvState, ModelSpec, OperationKind
from plimsoll.planners.serving.cache.kv_formats import CacheTerms, layer_bytes_per_token, sequence_state_bytes
from plimsoll.planners.serving.cache.pools import (
    WINDOWED,
    Bucket,
    Capacity,
    Pools,
    caching_blocks,
    concurrency,
    layer_indices,
    states_of,
)
from plimsoll.planners.serving.releases.profile import EngineProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceCache:
    """What one sequence's cache takes; the one pool's unit is a byte.

    Where `is_static` every sequence takes what one of `max_model_len` takes.
    """

    buckets: tuple[Bucket, ...]
    is_static: bool
    max_model_len: int
    source_tokens: int

    @property
    def block_size(self) -> int:
        """Return 1: there are no blocks."""
        return 1

    def notes(self, profile: EngineProfile) -> tuple[str, ...]:
        """Return which of the two caches is planned."""
        kept = "is allocated for max_model_len at once" if self.is_static else "grows with its tokens"
        return (f"Each sequence of {profile.engine}'s batch has a cache of its own, which {kept}.",)

    def pools(self, available_bytes: int, layers: range) -> Pools:  # noqa: ARG002
        """Return the bytes that sequences may take; no pipeline divides the layers."""
        return (available_bytes,)

    def pool_bytes(self, pools: Pools, layers: range) -> int:  # noqa: ARG002
        """Return the same bytes."""
        return pools[0]

    def usable(self, pools: Pools) -> Pools:
        """Return all bytes."""
        return pools

    def capacity(self, pools: Pools, *, max_model_len: int) -> Capacity:
        """Return what the bytes hold: the tokens of as many sequences of `max_model_len` as there is room for."""
        most = concurrency(pools, self.set_aside(max_model_len))
        tokens = int(most * max_model_len)
        return Capacity(blocks=tokens, tokens=tokens, max_concurrency=most, fits_one_request=most >= 1)

    def set_aside(self, tokens: int) -> Pools:
        """Return the bytes of one sequence of `tokens`."""
        return (sum(self._sequence_bytes(tokens)),)

    def held(self, tokens: int) -> Pools:
        """Return the bytes that a running sequence of `tokens` takes."""
        return self.set_aside(self.max_model_len if self.is_static else tokens)

    def filling(self, tokens: int) -> Pools:
        """Return the same: a prompt takes no more while it is computed."""
        return self.held(tokens)

    def slots_held(self, tokens: int) -> tuple[int, int]:
        """Return the token slots of a sequence, and how many stay empty."""
        slots = self.max_model_len if self.is_static else tokens
        return slots, slots - tokens

    def _sequence_bytes(self, tokens: int) -> Iterator[int]:
        for bucket in self.buckets:
            kept = tokens
            if bucket.state.kind in WINDOWED and bucket.state.window is not None:
                # A dynamic window drops the token that the next one takes the place of.
                kept = min(tokens, bucket.state.window - (0 if self.is_static else 1))
            elif bucket.state.kind is KvKind.CROSS_ATTENTION:
                kept = self.source_tokens
            each = bucket.bytes_per_token * kept if bucket.bytes_per_token else bucket.page_bytes
            yield each * len(bucket.layers)


def sequence_cache(model: ModelSpec, terms: CacheTerms, *, tensor_parallel: int, is_static: bool) -> SequenceCache:
    """Return what a sequence of this model takes."""
    buckets = tuple(_buckets(model, terms, tensor_parallel))
    sources = (terms.tokens_of_source(bucket.state) for bucket in buckets)
    return SequenceCache(
        buckets=buckets, is_static=is_static, max_model_len=terms.max_model_len, source_tokens=max(sources, default=0)
    )


def _buckets(model: ModelSpec, terms: CacheTerms, tensor_parallel: int) -> Iterator[Bucket]:
    latents = terms.profile.latents
    for state, alike in states_of(caching_blocks(model)).items():
        kept = state
        if state.kind is KvKind.LATENT and terms.profile.expands_latents(model.model_type):
            kept = _expanded(alike[0], state)
        page = 0
        if state.kind is KvKind.RECURRENT:
            # The convolution keeps as many inputs as its kernel has, one more than it needs.
            page = max(sequence_state_bytes(block, terms, tensor_parallel, draft_tokens=1) for block in alike)
        yield Bucket(
            state=kept,
            layers=layer_indices(alike),
            bytes_per_token=layer_bytes_per_token(kept, terms.kv, tensor_parallel=tensor_parallel, latents=latents),
            page_bytes=page,
            block_size=1,
        )


def _expanded(block: Block, state: KvState) -> KvState:
    """Return the full keys and values that versions cache which rebuild them from the latent first.

    Source: `transformers` 5.12, models/deepseek_v3/modeling_deepseek_v3.py.
    """
    attention = next(
        operation
        for operation in block.operations
        if operation.kind is OperationKind.ATTENTION and operation.name == "attention"
    )
    return KvState(
        kind=KvKind.FULL_ATTENTION,
        heads=attention.heads,
        head_dim=attention.key_dim,
        value_dim=attention.value_dim,
        index_width=state.index_width,
    )
