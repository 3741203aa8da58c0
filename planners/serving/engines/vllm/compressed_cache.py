"""DeepSeek-V4's cache as vLLM lays it out: entries that stand for several tokens, windows, and compressors' states.

A layer's tensors are stores: rows of single tokens of the window, entries and their
index, and what a compressor keeps in fp32 of tokens that have no entry yet. Stores that
grow are one group; those of windows and states are cut into groups of layers, and all
groups draw blocks from one pool. What a block takes changed twice.

Source: vllm-project/vllm#40760: vllm/models/deepseek_v4 (attention.py, compressor.py),
vllm/v1/attention/backends/mla/sparse_swa.py, vllm/v1/core/kv_cache_utils.py
(_get_kv_cache_groups_uniform_groups, _approximate_gcd).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from plimsoll.planners.architecture import KvState, ModelSpec
from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.ground.errors import ImpossibleLayout, InvalidQuestion, NotYetAvailable
from plimsoll.planners.serving.cache.block_pool import BlockPool
from plimsoll.planners.serving.cache.compressed_rows import BLOCK_TOKENS, index_row_bytes, row_bytes
from plimsoll.planners.serving.cache.kv_formats import CacheTerms
from plimsoll.planners.serving.cache.pools import Bucket, Capacity, Pools, caching_blocks, layer_indices, states_of
from plimsoll.planners.serving.engines.vllm.kv_cache import logged_capacity
from plimsoll.planners.serving.releases.profile import EngineProfile
from plimsoll.planners.serving.releases.rules import CompressedLayout

# Pages are padded to whole multiples of so many bytes.
ALIGNMENT_BYTES = 576
PACKED_FORMAT = "fp8"
# A block of the window has as many rows as one of entries that stand for 4 tokens.
WINDOW_BLOCK_TOKENS = 64
# Entries of 4 tokens overlap, and their compressor keeps 2 x 4 tokens, 4 in a block; of 128 it keeps 128, 8 in a block.
STATE_TOKENS: Mapping[int, int] = {4: 8, 128: 128}
STATE_BLOCK_TOKENS: Mapping[int, int] = {4: 4, 128: 8}
# A state is a value and a score for each feature, in fp32, of which overlapping entries have two.
STATE_PARTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """One tensor of each of its `layers`: a page holds a block of `block_tokens`; one without `window` grows."""

    layers: tuple[int, ...]
    page_bytes: int
    block_tokens: int
    window: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Stores that share their blocks: pages by their size, and the layers that have each."""

    pages: tuple[tuple[int, tuple[int, ...]], ...]
    block_tokens: int
    window: int | None

    def pages_within(self, layers: range) -> dict[int, int]:
        """Return how many pages of each size it has on a stage."""
        found: Counter[int] = Counter()
        for page_bytes, indices in self.pages:
            found[page_bytes] += sum(layer in layers for layer in indices)
        return dict(found)

    def blocks(self, tokens: int, in_flight_tokens: int) -> int:
        """Return the blocks set aside for a request of `tokens`; a window may begin inside a block."""
        if self.window is None:
            return -(-tokens // self.block_tokens)
        kept = min(self.window - 1 + in_flight_tokens, tokens)
        return -(-kept // self.block_tokens) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedCache(BlockPool):
    """One rank's cache: the first group grows. Everything stands whole on every rank."""

    buckets: tuple[Bucket, ...]
    profile: EngineProfile
    groups: tuple[Group, ...]
    in_flight_tokens: int

    @property
    def block_size(self) -> int:
        """Return the tokens of a block of entries."""
        return BLOCK_TOKENS

    @property
    def source_tokens(self) -> int:
        """Return 0: there is no encoder."""
        return 0

    def notes(self, profile: EngineProfile) -> tuple[str, ...]:  # noqa: ARG002
        """Return what is not counted."""
        return ("kv: a draft layer of multi-token prediction would have a window of its own; it is not counted.",)

    def capacity(self, pools: Pools, *, max_model_len: int) -> Capacity:
        """Return what the blocks hold, as the engine logs it."""
        return logged_capacity(
            pools[0],
            per_request=self.set_aside(max_model_len)[0],
            tokens_of_blocks=pools[0] // len(self.groups) * BLOCK_TOKENS,
            max_model_len=max_model_len,
            profile=self.profile,
        )

    def set_aside(self, tokens: int) -> Pools:
        """Return the blocks set aside for one request of `tokens` at its longest."""
        return (sum(group.blocks(tokens, self.in_flight_tokens) for group in self.groups),)

    def held(self, tokens: int) -> Pools:
        """Return the blocks that a running request of `tokens` fills between two steps."""
        return (self._filled(tokens, 1),)

    def filling(self, tokens: int) -> Pools:
        """Return the blocks that it fills at most while its prompt is computed."""
        return (self._filled(tokens, self.in_flight_tokens),)

    def _filled(self, tokens: int, in_flight_tokens: int) -> int:
        """Return the blocks that a request fills with so many tokens of a step: never more than its tokens need."""
        return sum(
            min(group.blocks(tokens, in_flight_tokens), -(-tokens // group.block_tokens)) for group in self.groups
        )

    def slots_held(self, tokens: int) -> tuple[int, int]:
        """Return the token slots of a request's growing blocks, and how many stay empty."""
        slots = -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS
        return slots, slots - tokens

    def stage_block_bytes(self, layers: range) -> int:
        """Return what one block takes on a stage, in any group's hands."""
        counts = [group.pages_within(layers) for group in self.groups]
        layout = self.profile.compressed_layout
        if layout is CompressedLayout.PACKED:
            return max(sum(size * count for size, count in pages.items()) for pages in counts)
        sizes = sorted(size for size, _ in self.groups[0].pages)
        slots = [_in_slots(pages, sizes) for pages in counts]
        if layout is CompressedLayout.TUPLES:
            return max(max(each.values()) for each in slots) * sum(sizes)
        return sum(size * max(each[size] for each in slots) for size in sizes)


def _in_slots(pages: Mapping[int, int], sizes: Sequence[int]) -> Counter[int]:
    """Return how many pages lie in slots of each size: in the smallest that holds them."""
    slots: Counter[int] = Counter()
    for page_bytes, count in pages.items():
        slots[min((size for size in sizes if size >= page_bytes), default=sizes[-1])] += count
    return slots


def compressed_cache(model: ModelSpec, terms: CacheTerms, *, context_parallel: int = 1) -> CompressedCache:
    """Return how vLLM lays a DeepSeek-V4 model's cache out.

    Raises `NotYetAvailable` for another format or shape, `InvalidQuestion` for
    a version that does not know the model and `ImpossibleLayout` for context parallelism.
    """
    profile = terms.profile
    if profile.compressed_layout is CompressedLayout.NONE:
        raise InvalidQuestion(
            f"vllm {profile.version} does not know {model.name}; newer versions do.", pointer="/serving/engine_version"
        )
    if terms.kv.name != PACKED_FORMAT:
        raise NotYetAvailable(
            f"A compressed cache (DeepSeek-V4) is sized in fp8 alone, not in {terms.kv.name}: ask for kv_cache fp8.",
            pointer="/serving/kv_cache",
        )
    if context_parallel > 1:
        raise ImpossibleLayout(
            "decode_context_parallel divides full attention alone, and this model has other layers.",
            rule="context-parallel-full-attention",
            pointer="/layout/decode_context_parallel",
        )
    by_state = {state: layer_indices(blocks) for state, blocks in states_of(caching_blocks(model)).items()}
    return CompressedCache(
        buckets=tuple(_bucket(state, layers) for state, layers in by_state.items()),
        profile=profile,
        groups=_groups([store for state, layers in by_state.items() for store in _stores(state, layers)]),
        in_flight_tokens=terms.in_flight_tokens,
    )


def _bucket(state: KvState, layers: tuple[int, ...]) -> Bucket:
    """Return the layers as an answer tells of them: what a token adds, an entry's share rounded up."""
    entry = state.compressed
    if entry is None:
        each, tokens = row_bytes(state.latent_width), 1
    else:
        each, tokens = row_bytes(entry.entry_width), entry.tokens_per_entry
        each += index_row_bytes(entry.index_width) if entry.index_width else 0
    per_token = -(-each // tokens)
    return Bucket(
        state=state,
        layers=layers,
        bytes_per_token=per_token,
        page_bytes=BLOCK_TOKENS * per_token,
        block_size=BLOCK_TOKENS,
        whole_bytes_per_token=per_token,
    )


def _stores(state: KvState, layers: tuple[int, ...]) -> Iterator[Store]:
    """Yield what layers of one kind keep."""
    yield Store(
        layers=layers,
        page_bytes=_page_bytes(WINDOW_BLOCK_TOKENS, row_bytes(state.latent_width)),
        block_tokens=WINDOW_BLOCK_TOKENS,
        window=state.window,
    )
    entry = state.compressed
    if entry is None:
        return
    if entry.tokens_per_entry not in STATE_TOKENS:
        raise NotYetAvailable(f"Entries of {entry.tokens_per_entry} tokens are not sized yet.", pointer="/model")
    entries = BLOCK_TOKENS // entry.tokens_per_entry
    widths = [(entry.entry_width, row_bytes(entry.entry_width))]
    if entry.index_width:
        widths.append((entry.index_width, index_row_bytes(entry.index_width)))
    for width, each in widths:
        yield Store(layers=layers, page_bytes=_page_bytes(entries, each), block_tokens=BLOCK_TOKENS, window=None)
        yield _state_store(layers, width, entry.tokens_per_entry)


def _state_store(layers: tuple[int, ...], width: int, tokens_per_entry: int) -> Store:
    kept = STATE_TOKENS[tokens_per_entry]
    features = STATE_PARTS * width * (kept // tokens_per_entry)
    rows = STATE_BLOCK_TOKENS[tokens_per_entry]
    return Store(layers=layers, page_bytes=_page_bytes(rows, features * FP32_BYTES), block_tokens=rows, window=kept)


def _page_bytes(rows: int, each: int) -> int:
    return -(-rows * each // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _groups(stores: Sequence[Store]) -> tuple[Group, ...]:
    """Return the growing group and those of windows and states, the latter cut so that little is padded."""
    merged: defaultdict[tuple[int, int | None], defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for store in sorted(stores, key=lambda store: store.window is not None):
        merged[(store.block_tokens, store.window)][store.page_bytes].extend(store.layers)
    most = [max(map(len, pages.values())) for pages in merged.values()]
    layers_each = least_padding(most)
    found = []
    for (block_tokens, window), pages in merged.items():
        parts = 1 if window is None else -(-max(map(len, pages.values())) // layers_each)
        for part in range(parts):
            cut = tuple((size, tuple(sorted(layers)[part::parts])) for size, layers in pages.items())
            found.append(Group(pages=cut, block_tokens=block_tokens, window=window))
    return tuple(found)


def least_padding(lengths: Sequence[int]) -> int:
    """Return the layers of one group: no fewer than the first bucket's, and the most that pad least."""
    first, longest = lengths[0], max(lengths)
    return min(range(first, longest + 1), key=lambda size: (sum(-length % size for length in lengths), -size))
