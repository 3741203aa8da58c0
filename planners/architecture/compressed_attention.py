"""Compressed attention: a short window of single tokens, and before it entries that each stand for several.

Queries come from a latent; one vector a token is key and value of all heads. A
compressor pools every few tokens into one more such vector; where entries are
many, an indexer chooses those that a token reads. The heads' outputs go through
narrow matrices, a group of heads each, before they meet.

Source: DeepSeek-V4's report, sections 2.3.1 and 2.3.2, and `transformers` 5.23,
modeling_deepseek_v4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plimsoll.planners.architecture.attention import column, row
from plimsoll.planners.architecture.decoder import Half
from plimsoll.planners.architecture.operation import Operation, OperationKind, Region, Tensor, matmul, whole_matmul
from plimsoll.planners.architecture.sequence_state import CompressedState, KvKind, KvState
from plimsoll.planners.architecture.sparse_attention import ELEMENTS_PER_INDEX
from plimsoll.planners.architecture.weight import Part, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressor:
    """Pools every `tokens_per_entry` tokens into an entry of `width` features, weighted by a softmax over them.

    With overlap an entry also takes part of the tokens of the one before, for
    which each token has features of their own: twice the width.
    """

    width: int
    tokens_per_entry: int
    has_overlap: bool

    @property
    def token_width(self) -> int:
        """Return the features that a token gives to the entries it is part of."""
        return self.width * (2 if self.has_overlap else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryIndexer:
    """Scores the entries with `heads` queries against keys of its own compressor and chooses `chosen_entries`."""

    heads: int
    chosen_entries: int
    compressor: Compressor


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention:
    """The sizes of one layer; without a `compressor` it sees the window alone.

    Each of `output_groups` groups of heads is projected to `output_rank` features.
    """

    hidden_size: int
    heads: int
    head_dim: int
    query_rank: int
    output_groups: int
    output_rank: int
    window: int
    compressor: Compressor | None = None
    indexer: EntryIndexer | None = None

    @property
    def key_value_heads(self) -> int:
        """Return one: a single vector is key and value of all heads."""
        return 1

    @property
    def query_width(self) -> int:
        """Return the features of all query heads together, and of what all heads gather."""
        return self.heads * self.head_dim

    @property
    def output_width(self) -> int:
        """Return the features of all groups of heads together."""
        return self.output_groups * self.output_rank

    def kv_state(self) -> KvState:
        """Return what one such layer caches: the window's vectors, and the entries with the indexer's keys."""
        if self.compressor is None:
            return KvState(kind=KvKind.SLIDING_WINDOW, latent_width=self.head_dim, window=self.window)
        return KvState(
            kind=KvKind.COMPRESSED,
            latent_width=self.head_dim,
            window=self.window,
            compressed=CompressedState(
                entry_width=self.compressor.width,
                index_width=0 if self.indexer is None else self.indexer.compressor.width,
                tokens_per_entry=self.compressor.tokens_per_entry,
            ),
        )


def compressed_attention_weights(prefix: str, size: CompressedAttention) -> tuple[Weight, ...]:
    """Return the weights as DeepSeek-V4's checkpoints name them; only what belongs to heads is divided."""
    context_width = size.query_width // size.output_groups
    return (
        _whole(f"{prefix}.wq_a.weight", (size.query_rank, size.hidden_size)),
        Weight(name=f"{prefix}.q_norm.weight", shape=(size.query_rank,), part=Part.NORM),
        column(f"{prefix}.wq_b.weight", (size.query_width, size.query_rank), size.heads, is_linear=True),
        _whole(f"{prefix}.wkv.weight", (size.head_dim, size.hidden_size)),
        Weight(name=f"{prefix}.kv_norm.weight", shape=(size.head_dim,), part=Part.NORM),
        column(f"{prefix}.wo_a.weight", (size.output_width, context_width), size.output_groups, is_linear=True),
        row(f"{prefix}.wo_b.weight", (size.hidden_size, size.output_width), size.output_groups),
        column(f"{prefix}.attn_sink", (size.heads,), size.heads),
        *(() if size.compressor is None else _compressor_weights(f"{prefix}.compressor", size, size.compressor)),
        *(() if size.indexer is None else _indexer_weights(f"{prefix}.indexer", size, size.indexer)),
    )


def compressed_attention_half(size: CompressedAttention) -> Half:
    """Return compressed attention as the token-mixing half."""
    return Half(tensors=tuple(_tensors(size)), operations=tuple(_operations(size)))


def _compressor_weights(prefix: str, size: CompressedAttention, compressor: Compressor) -> tuple[Weight, ...]:
    width, positions = compressor.token_width, (compressor.tokens_per_entry, compressor.token_width)
    return (
        _whole(f"{prefix}.wkv.weight", (width, size.hidden_size)),
        _whole(f"{prefix}.wgate.weight", (width, size.hidden_size)),
        Weight(name=f"{prefix}.ape", shape=positions, part=Part.ATTENTION),
        Weight(name=f"{prefix}.norm.weight", shape=(compressor.width,), part=Part.NORM),
    )


def _indexer_weights(prefix: str, size: CompressedAttention, indexer: EntryIndexer) -> tuple[Weight, ...]:
    return (
        _whole(f"{prefix}.wq_b.weight", (indexer.heads * indexer.compressor.width, size.query_rank)),
        _whole(f"{prefix}.weights_proj.weight", (indexer.heads, size.hidden_size)),
        *_compressor_weights(f"{prefix}.compressor", size, indexer.compressor),
    )


def _tensors(size: CompressedAttention) -> Iterator[Tensor]:
    yield Tensor(name="attention_input", width=size.hidden_size)
    yield Tensor(name="query_latent", width=size.query_rank)
    yield Tensor(name="query", width=size.query_width, region=Region.TENSOR)
    yield Tensor(name="key_value", width=size.head_dim)
    yield Tensor(name="attention_context", width=size.query_width, region=Region.TENSOR)
    yield Tensor(name="attention_groups", width=size.output_width, region=Region.TENSOR)
    yield Tensor(name="attention_output", width=size.hidden_size)
    if size.compressor is not None:
        yield from _compressor_tensors("entry", size.compressor)
    if size.indexer is not None:
        yield from _compressor_tensors("index_key", size.indexer.compressor)
        yield Tensor(name="index_query", width=size.indexer.heads * size.indexer.compressor.width)
        yield Tensor(name="index_weights", width=size.indexer.heads)
        yield Tensor(name="chosen_entries", width=ELEMENTS_PER_INDEX * size.indexer.chosen_entries)


def _compressor_tensors(prefix: str, compressor: Compressor) -> Iterator[Tensor]:
    """Yield what a compressor reads and the share of its entries that one token stands for, rounded up."""
    yield Tensor(name=f"{prefix}_parts", width=compressor.token_width)
    yield Tensor(name=f"{prefix}_gate", width=compressor.token_width)
    yield Tensor(name=prefix, width=-(-compressor.width // compressor.tokens_per_entry))


def _operations(size: CompressedAttention) -> Iterator[Operation]:
    yield whole_matmul("query_down", "attention_input", "query_latent", (size.hidden_size, size.query_rank))
    yield matmul("query_up", "query_latent", "query", (size.query_rank, size.query_width))
    yield whole_matmul("key_value_projection", "attention_input", "key_value", (size.hidden_size, size.head_dim))
    yield Operation(name="rotary", kind=OperationKind.ROTARY, inputs=("query", "key_value"), output="query")
    yield _attention("attention", "key_value", size, window=size.window)
    if size.compressor is not None:
        yield from _compression("entry", size.hidden_size, size.compressor)
        chosen = None
        if size.indexer is not None:
            yield from _indexing(size, size.indexer)
            chosen = size.indexer.chosen_entries
        tokens_per_entry = size.compressor.tokens_per_entry
        yield _attention("entry_attention", "entry", size, window=chosen, tokens_per_position=tokens_per_entry)
    group_width = size.query_width // size.output_groups
    yield matmul(
        "group_projection",
        "attention_context",
        "attention_groups",
        (group_width, size.output_rank),
        copies=size.output_groups,
    )
    yield matmul(
        "output_projection",
        "attention_groups",
        "attention_output",
        (size.output_width, size.hidden_size),
        is_row_parallel=True,
    )


def _compression(prefix: str, hidden_size: int, compressor: Compressor) -> Iterator[Operation]:
    """Yield the projections of every token and the weighted sum of an entry's."""
    for name in ("parts", "gate"):
        yield whole_matmul(
            f"{prefix}_{name}_projection", "attention_input", f"{prefix}_{name}", (hidden_size, compressor.token_width)
        )
    yield Operation(
        name=f"{prefix}_pooling",
        kind=OperationKind.GATED_ACTIVATION,
        inputs=(f"{prefix}_gate", f"{prefix}_parts"),
        output=prefix,
        region=Region.SEQUENCE,
    )


def _indexing(size: CompressedAttention, indexer: EntryIndexer) -> Iterator[Operation]:
    width = indexer.compressor.width
    yield from _compression("index_key", size.hidden_size, indexer.compressor)
    yield whole_matmul(
        "index_query_projection", "query_latent", "index_query", (size.query_rank, indexer.heads * width)
    )
    yield whole_matmul(
        "index_weights_projection", "attention_input", "index_weights", (size.hidden_size, indexer.heads)
    )
    yield Operation(
        name="index_scores",
        kind=OperationKind.ATTENTION,
        inputs=("index_query", "index_key", "index_weights"),
        output="chosen_entries",
        region=Region.SEQUENCE,
        heads=indexer.heads,
        key_dim=width,
        value_dim=1,
        tokens_per_position=indexer.compressor.tokens_per_entry,
    )


def _attention(
    name: str, key: str, size: CompressedAttention, *, window: int | None, tokens_per_position: int = 1
) -> Operation:
    """Return attention to the window or to the entries: one softmax over both, so one context."""
    return Operation(
        name=name,
        kind=OperationKind.ATTENTION,
        inputs=("query", key),
        output="attention_context",
        heads=size.heads,
        key_dim=size.head_dim,
        value_dim=size.head_dim,
        window=window,
        tokens_per_position=tokens_per_position,
    )


def _whole(name: str, shape: tuple[int, int]) -> Weight:
    return Weight(name=name, shape=shape, part=Part.ATTENTION, is_linear=True)
