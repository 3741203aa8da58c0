"""The KV cache as vLLM lays it out: pages, groups, blocks, tokens and requests.

A block holds `block_size` tokens of one layer in a page. Layers that cache alike
form buckets, buckets are cut into groups of equal size, and all groups draw
their blocks from one pool.

Source: vllm/v1/core/kv_cache_utils.py and vllm/v1/kv_cache_interface.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planners.architecture import KvKind, KvState, ModelSpec
from planners.errors import InvalidQuestion, NotYetAvailable
from planners.serving.engine import EngineProfile, TokensWording

# A bucket smaller than this times the smallest sets no group size of its own;
# vllm/v1/core/kv_cache_utils.py, _get_kv_cache_groups_uniform_page_size.
PADDING_RATIO = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFormat:
    """How one element of the cache is stored, and the scale of each head's key or value."""

    name: str
    bits_per_element: float
    scale_bytes_per_head: int = 0


KV_FORMATS: Mapping[str, KvFormat] = {
    kv_format.name: kv_format
    for kv_format in (
        KvFormat(name="bf16", bits_per_element=16),
        KvFormat(name="fp16", bits_per_element=16),
        # One scale a layer: nothing for each token.
        KvFormat(name="fp8", bits_per_element=8),
        # int8_per_token_head: a float32 scale each for key and value (vllm-project/vllm#38378).
        KvFormat(name="int8", bits_per_element=8, scale_bytes_per_head=8),
        # 4 bits and an 8-bit scale for each 16 elements.
        KvFormat(name="nvfp4", bits_per_element=4.5),
    )
}


def kv_format(name: str, profile: EngineProfile) -> KvFormat:
    """Return the named format; raise with the allowed ones if this engine version lacks it."""
    if name not in profile.kv_dtypes:
        raise InvalidQuestion(
            f"{profile.engine} {profile.version} has no KV cache in {name[:40]!r}; "
            f"allowed are {', '.join(profile.kv_dtypes)}.",
            pointer="/serving/kv_cache",
        )
    return KV_FORMATS[name]


def layer_bytes_per_token(state: KvState, kv: KvFormat, *, tensor_parallel: int = 1) -> int:
    """Return what one token adds to one layer's cache on one rank, in bytes."""
    heads = -(-state.heads // tensor_parallel)
    elements = state.local_elements_per_token(tensor_parallel)
    return int(elements * kv.bits_per_element / 8) + heads * kv.scale_bytes_per_head


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Layers that cache alike: their indices and what a token takes of one rank's layer."""

    state: KvState
    layers: tuple[int, ...]
    bytes_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """Buckets cut into groups of `group_size` layers, the last of a bucket padded.

    `page_bytes` is one block of one layer on one rank. `in_flight_tokens` are
    those of batches under way, which a sliding window keeps besides its own.
    """

    buckets: tuple[Bucket, ...]
    group_size: int
    block_size: int
    page_bytes: int
    in_flight_tokens: int

    @property
    def groups(self) -> int:
        """Return how many groups draw from the pool."""
        return sum(self.bucket_groups(bucket) for bucket in self.buckets)

    def bucket_groups(self, bucket: Bucket) -> int:
        """Return how many groups a bucket is cut into."""
        return -(-len(bucket.layers) // self.group_size)

    @property
    def padding_layers(self) -> int:
        """Return the layers that exist only to fill the last group of each bucket."""
        return self.groups * self.group_size - sum(len(bucket.layers) for bucket in self.buckets)

    def stage_block_bytes(self, layers: range) -> int:
        """Return one block's bytes on a stage: the most layers any group has there, a page each."""
        most = 0
        for bucket in self.buckets:
            count = self.bucket_groups(bucket)
            for first in range(count):
                group = bucket.layers[first::count]
                most = max(most, bisect_left(group, layers.stop) - bisect_left(group, layers.start))
        return most * self.page_bytes

    def blocks_per_request(self, tokens: int) -> int:
        """Return the blocks the engine sets aside for one request of `tokens` at its longest."""
        return sum(self.bucket_groups(bucket) * self._group_blocks(bucket.state, tokens) for bucket in self.buckets)

    def _group_blocks(self, state: KvState, tokens: int) -> int:
        if state.kind is KvKind.FULL_ATTENTION or state.window is None:
            return -(-tokens // self.block_size)
        kept = min(state.window - 1 + self.in_flight_tokens, tokens)
        # The window may begin inside a block, so one block more.
        return -(-kept // self.block_size) + 1

    def blocks_held(self, tokens: int) -> int:
        """Return the blocks that a running request of `tokens` fills: never more than its tokens need."""
        whole = -(-tokens // self.block_size)
        return sum(
            self.bucket_groups(bucket) * min(whole, self._group_blocks(bucket.state, tokens)) for bucket in self.buckets
        )


def cache_layout(
    model: ModelSpec, kv: KvFormat, *, tensor_parallel: int, block_size: int, in_flight_tokens: int
) -> CacheLayout:
    """Return how the engine groups the model's layers.

    Raises `NotYetAvailable` for state other than full and sliding-window
    attention and for layers whose pages differ in size.
    """
    by_state: dict[KvState, list[int]] = {}
    for block in model.layers:
        if block.kv is None or block.kv.kind not in (KvKind.FULL_ATTENTION, KvKind.SLIDING_WINDOW):
            kind = "none" if block.kv is None else block.kv.kind.value
            raise NotYetAvailable(f"A cache of the kind {kind} is not sized yet ({model.name}).", pointer="/model")
        by_state.setdefault(block.kv, []).extend(block.layers)
    buckets = tuple(
        Bucket(
            state=state,
            layers=tuple(sorted(layers)),
            bytes_per_token=layer_bytes_per_token(state, kv, tensor_parallel=tensor_parallel),
        )
        for state, layers in by_state.items()
    )
    widths = {bucket.bytes_per_token for bucket in buckets}
    if len(widths) > 1:
        raise NotYetAvailable(f"Layers of {model.name} cache {sorted(widths)} bytes a token.", pointer="/model")
    return CacheLayout(
        buckets=buckets,
        group_size=group_size([len(bucket.layers) for bucket in buckets]),
        block_size=block_size,
        page_bytes=block_size * widths.pop(),
        in_flight_tokens=in_flight_tokens,
    )


def group_size(bucket_lengths: Sequence[int]) -> int:
    """Return the layers of one group: the smallest bucket, or the largest where they are nearly equal."""
    smallest, largest = min(bucket_lengths), max(bucket_lengths)
    return largest if largest < smallest * PADDING_RATIO else smallest


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a pool of `blocks` holds, in the engine's words."""

    blocks: int
    tokens: int
    max_concurrency: float
    fits_one_request: bool


def capacity(layout: CacheLayout, blocks: int, *, max_model_len: int, profile: EngineProfile) -> Capacity:
    """Return tokens and concurrency as this engine version logs them for `blocks`.

    One block, the null block, is never given to a request; newer versions keep
    it apart when they check that one request of `max_model_len` fits.
    """
    per_request = layout.blocks_per_request(max_model_len)
    concurrency = blocks / per_request
    if profile.tokens_wording is TokensWording.CONCURRENCY_TIMES_LENGTH:
        tokens = int(concurrency * max_model_len)
    elif profile.tokens_wording is TokensWording.BLOCKS_PER_GROUP:
        tokens = blocks // layout.groups * layout.block_size
    else:
        tokens = blocks * layout.block_size
    return Capacity(
        blocks=blocks,
        tokens=tokens,
        max_concurrency=concurrency,
        fits_one_request=usable_blocks(blocks, profile) >= per_request,
    )


def usable_blocks(blocks: int, profile: EngineProfile) -> int:
    """Return the blocks requests may have, by this version's own check."""
    return max(0, blocks - 1) if profile.subtracts_null_block else blocks
