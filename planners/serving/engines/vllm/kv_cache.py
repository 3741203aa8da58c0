"""The KV cache as vLLM lays it out: pages, groups, blocks, tokens and requests.

A block holds `block_size` tokens of one layer in a page. Layers that cache alike
form buckets, buckets are cut into groups of equal size, and all groups draw
their blocks from one pool.

Source: vllm/v1/core/kv_cache_utils.py and vllm/v1/kv_cache_interface.py.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll.planners.architecture import GROWING, Block, KvKind, ModelSpec
from plimsoll.planners.ground.errors import ImpossibleLayout, InvalidQuestion
from plimsoll.planners.serving.cache.block_pool import BlockPool, usable_blocks
from plimsoll.planners.serving.cache.kv_formats import CacheTerms, layer_bytes_per_token, sequence_state_bytes
from plimsoll.planners.serving.cache.pools import (
    Bucket,
    Capacity,
    Pools,
    caching_blocks,
    layer_indices,
    states_of,
)
from plimsoll.planners.serving.releases.profile import EngineProfile
from plimsoll.planners.serving.releases.rules import TokensWording

# A bucket smaller than this times the smallest sets no group size of its own;
# vllm/v1/core/kv_cache_utils.py, _get_kv_cache_groups_uniform_page_size.
PADDING_RATIO = 1.5
# Kinds whose need does not depend on a request's own length.
FIXED = frozenset({KvKind.RECURRENT, KvKind.CROSS_ATTENTION})


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout(BlockPool):
    """Buckets cut into groups of `group_size` layers, the last of a bucket padded.

    Where `is_one_group` all layers need blocks for the same tokens and share them,
    each with a page of its own size. `context_parallel` ranks share a sequence's
    tokens out among them. `recurrent_blocks` is what a sequence takes of a group
    of recurrent layers, `source_tokens` what an encoder hands it.
    """

    buckets: tuple[Bucket, ...]
    profile: EngineProfile
    group_size: int
    is_one_group: bool
    in_flight_tokens: int
    recurrent_blocks: int
    context_parallel: int
    source_tokens: int

    @property
    def block_size(self) -> int:
        """Return the tokens of the smallest block."""
        return min(bucket.block_size for bucket in self.buckets)

    @property
    def groups(self) -> int:
        """Return how many groups draw from the pool."""
        return 1 if self.is_one_group else sum(self.bucket_groups(bucket) for bucket in self.buckets)

    def bucket_groups(self, bucket: Bucket) -> int:
        """Return how many groups a bucket is cut into."""
        return -(-len(bucket.layers) // self.group_size)

    def notes(self, profile: EngineProfile) -> tuple[str, ...]:  # noqa: ARG002
        """Return nothing: groups and blocks are in the plan."""
        return ()

    def capacity(self, pools: Pools, *, max_model_len: int) -> Capacity:
        """Return what the blocks hold, as the engine logs it."""
        return capacity(self, pools[0], max_model_len=max_model_len, profile=self.profile)

    def set_aside(self, tokens: int) -> Pools:
        """Return the blocks set aside for one request of `tokens`."""
        return (self.blocks_per_request(tokens),)

    def held(self, tokens: int) -> Pools:
        """Return the blocks that a running request of `tokens` fills between two steps."""
        return (self.blocks_held(tokens, in_flight_tokens=1),)

    def filling(self, tokens: int) -> Pools:
        """Return the blocks that it fills at most while its prompt is computed.

        Source: vllm/v1/core/single_type_kv_cache_manager.py, `remove_skipped_blocks`: blocks that a window has left
        are freed before the next step's are taken.
        """
        return (self.blocks_held(tokens, in_flight_tokens=self.in_flight_tokens),)

    def stage_block_bytes(self, layers: range) -> int:
        """Return one block's bytes on a stage: the most layers any group has there, a page each."""
        if self.is_one_group:
            return sum(bucket.page_bytes * bucket.layers_within(layers) for bucket in self.buckets)
        most = 0
        for bucket in self.buckets:
            count = self.bucket_groups(bucket)
            for first in range(count):
                group = bucket.layers[first::count]
                most = max(most, bisect_left(group, layers.stop) - bisect_left(group, layers.start))
        return most * self.buckets[0].page_bytes

    def blocks_per_request(self, tokens: int) -> int:
        """Return the blocks the engine sets aside for one request of `tokens` at its longest."""
        in_flight = self.in_flight_tokens
        if self.is_one_group:
            return self._group_blocks(self.buckets[0], tokens, in_flight)
        return sum(
            self.bucket_groups(bucket) * self._group_blocks(bucket, tokens, in_flight) for bucket in self.buckets
        )

    def _group_blocks(self, bucket: Bucket, tokens: int, in_flight_tokens: int) -> int:
        kind, window = bucket.state.kind, bucket.state.window
        if kind is KvKind.RECURRENT:
            return self.recurrent_blocks
        if kind is KvKind.CROSS_ATTENTION:
            return -(-self.source_tokens // bucket.block_size)
        if kind in GROWING or window is None or (kind is KvKind.CHUNKED_LOCAL and not self.profile.chunks_locally):
            local = -(-tokens // self.context_parallel)
            return -(-local // bucket.block_size)
        if kind is KvKind.CHUNKED_LOCAL:
            return -(-min(window + in_flight_tokens, tokens) // bucket.block_size)
        kept = min(window - 1 + in_flight_tokens, tokens)
        # The window may begin inside a block, so one block more.
        return -(-kept // bucket.block_size) + 1

    def blocks_held(self, tokens: int, *, in_flight_tokens: int) -> int:
        """Return the blocks that a request of `tokens` fills with so many of a step: no more than it has."""
        buckets = self.buckets[:1] if self.is_one_group else self.buckets
        return sum(
            (1 if self.is_one_group else self.bucket_groups(bucket)) * self._held(bucket, tokens, in_flight_tokens)
            for bucket in buckets
        )

    def slots_held(self, tokens: int) -> tuple[int, int]:
        """Return the token slots of all blocks that a request fills in caches that grow, and how many stay empty."""
        slots = empty = 0
        for bucket in self.buckets[:1] if self.is_one_group else self.buckets:
            if bucket.state.kind in FIXED:
                continue
            groups = 1 if self.is_one_group else self.bucket_groups(bucket)
            taken = groups * self._held(bucket, tokens, 1) * bucket.block_size
            slots += taken
            empty += groups * (-tokens % bucket.block_size)
        return slots, empty

    def _held(self, bucket: Bucket, tokens: int, in_flight_tokens: int) -> int:
        most = self._group_blocks(bucket, tokens, in_flight_tokens)
        return most if bucket.state.kind in FIXED else min(most, -(-tokens // bucket.block_size))


def cache_layout(
    model: ModelSpec, terms: CacheTerms, *, tensor_parallel: int, context_parallel: int = 1
) -> CacheLayout:
    """Return how the engine groups the model's layers.

    Raises `InvalidQuestion` for a model that this version refuses and
    `ImpossibleLayout` where context parallelism meets a cache that has none.
    """
    blocks = caching_blocks(model)
    kinds = {state.kind for state in states_of(blocks)}
    if context_parallel > 1 and not kinds <= GROWING:
        raise ImpossibleLayout(
            "decode_context_parallel divides full attention alone, and this model has other layers.",
            rule="context-parallel-full-attention",
            pointer="/layout/decode_context_parallel",
        )
    block_size = _block_size(blocks, terms, tensor_parallel) if KvKind.RECURRENT in kinds else terms.block_size
    buckets = _buckets(blocks, terms, tensor_parallel, block_size)
    # Layers that grow share one group whatever their widths (UniformTypeKVCacheSpecs).
    is_one_group = len(buckets) == 1 or kinds <= GROWING or kinds == {KvKind.RECURRENT}
    if not is_one_group:
        buckets = _equal_pages(model, buckets, terms.profile)
    return CacheLayout(
        buckets=buckets,
        profile=terms.profile,
        group_size=group_size([len(bucket.layers) for bucket in buckets]),
        is_one_group=is_one_group,
        in_flight_tokens=terms.in_flight_tokens,
        recurrent_blocks=_recurrent_blocks(terms, only_states=kinds == {KvKind.RECURRENT}),
        context_parallel=context_parallel,
        source_tokens=max(terms.tokens_of_source(bucket.state) for bucket in buckets),
    )


def _recurrent_blocks(terms: CacheTerms, *, only_states: bool) -> int:
    """Return the blocks that a sequence takes of a group of recurrent layers.

    A model of states alone has no prefix caching by default, and a state its one block.

    Source: vllm/v1/kv_cache_interface.py, MambaSpec.max_memory_usage_bytes.
    """
    kept = 1 if only_states else terms.profile.recurrent_blocks + terms.checkpoint_blocks
    return kept + terms.draft_tokens


def _block_size(blocks: Sequence[Block], terms: CacheTerms, tensor_parallel: int) -> int:
    """Return the tokens of an attention block beside recurrent layers: as many as fill one sequence's state.

    Source: vllm/platforms/interface.py, _align_hybrid_block_size (before it
    model_executor/models/config.py, HybridAttentionMambaModelConfig).
    """
    latents = terms.profile.latents
    widest = max(
        layer_bytes_per_token(state, terms.kv, tensor_parallel=tensor_parallel, latents=latents)
        for state in states_of(blocks)
    )
    if widest == 0:
        return terms.max_model_len
    largest = max(_state_bytes(block, terms, tensor_parallel) for block in blocks)
    step = math.lcm(terms.block_size, terms.state_block_tokens)
    return step * -(-largest // (step * widest))


def _buckets(blocks: Sequence[Block], terms: CacheTerms, tensor_parallel: int, block_size: int) -> tuple[Bucket, ...]:
    buckets = []
    for state, alike in states_of(blocks).items():
        per_token = layer_bytes_per_token(
            state, terms.kv, tensor_parallel=tensor_parallel, latents=terms.profile.latents
        )
        is_recurrent = state.kind is KvKind.RECURRENT
        page = max(_state_bytes(block, terms, tensor_parallel) for block in alike) if is_recurrent else 0
        buckets.append(
            Bucket(
                state=state,
                layers=layer_indices(alike),
                bytes_per_token=per_token,
                page_bytes=page or block_size * per_token,
                # Without prefix caching a state stands for the whole sequence.
                block_size=terms.max_model_len if is_recurrent else block_size,
            )
        )
    return tuple(buckets)


def _state_bytes(block: Block, terms: CacheTerms, tensor_parallel: int) -> int:
    return sequence_state_bytes(block, terms, tensor_parallel, draft_tokens=terms.draft_tokens)


def _equal_pages(model: ModelSpec, buckets: tuple[Bucket, ...], profile: EngineProfile) -> tuple[Bucket, ...]:
    """Return the buckets with pages of one size: small ones hold more tokens, states are padded.

    Source: vllm/v1/core/kv_cache_utils.py, unify_kv_cache_spec_page_size (since 0.33 in kv_cache_planning.py).
    """
    largest = max(bucket.page_bytes for bucket in buckets)
    equal = []
    for bucket in buckets:
        times, rest = divmod(largest, bucket.page_bytes)
        can_be_padded = rest and profile.pads_pages and not bucket.state.latent_width
        if bucket.state.kind is KvKind.RECURRENT or can_be_padded:
            times = 1
        elif rest or (times > 1 and not profile.unifies_pages):
            raise InvalidQuestion(
                f"{profile.engine} {profile.version} refuses {model.name}: it has no block for pages of "
                f"{bucket.page_bytes} and {largest} bytes; newer versions have.",
                pointer="/serving/engine_version",
            )
        equal.append(dataclasses.replace(bucket, page_bytes=largest, block_size=bucket.block_size * times))
    return tuple(equal)


def group_size(bucket_lengths: Sequence[int]) -> int:
    """Return the layers of one group: the smallest bucket, or the largest where they are nearly equal."""
    smallest, largest = min(bucket_lengths), max(bucket_lengths)
    return largest if largest < smallest * PADDING_RATIO else smallest


def capacity(layout: CacheLayout, blocks: int, *, max_model_len: int, profile: EngineProfile) -> Capacity:
    """Return tokens and concurrency as this engine version logs them for `blocks`."""
    whole = blocks // layout.groups if profile.tokens_wording is TokensWording.BLOCKS_PER_GROUP else blocks
    return logged_capacity(
        blocks,
        per_request=layout.blocks_per_request(max_model_len),
        tokens_of_blocks=whole * layout.block_size * layout.context_parallel,
        max_model_len=max_model_len,
        profile=profile,
    )


def logged_capacity(
    blocks: int, *, per_request: int, tokens_of_blocks: int, max_model_len: int, profile: EngineProfile
) -> Capacity:
    """Return what `blocks` hold of requests of `max_model_len` that each take `per_request`.

    Versions that do not log concurrency times length log `tokens_of_blocks`. One block,
    the null block, is never given to a request; newer versions keep it apart when they
    check that one request of `max_model_len` fits.
    """
    concurrency = blocks / per_request
    by_length = profile.tokens_wording is TokensWording.CONCURRENCY_TIMES_LENGTH
    return Capacity(
        blocks=blocks,
        tokens=int(concurrency * max_model_len) if by_length else tokens_of_blocks,
        max_concurrency=concurrency,
        fits_one_request=usable_blocks(blocks, profile) >= per_request,
    )
