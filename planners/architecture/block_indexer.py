"""Block-sparse attention: an indexer scores the earlier tokens and attention reads the best blocks of them.

Source: `transformers` 5.23, modeling_minimax_m3_vl.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from plimsoll.planners.architecture.attention import GroupedAttention
from plimsoll.planners.architecture.decoder import Half, attention_half
from plimsoll.planners.architecture.operation import Operation, OperationKind, Region, Tensor, whole_matmul
from plimsoll.planners.architecture.sequence_state import KvState
from plimsoll.planners.architecture.sparse_attention import ELEMENTS_PER_INDEX
from plimsoll.planners.architecture.weight import Part, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockIndexer:
    """The sizes: `heads` queries and one key of `head_dim` features a token; each chooses `chosen_blocks` blocks.

    A block is `block_tokens` neighbouring tokens, scored by the best of them.
    """

    hidden_size: int
    heads: int
    head_dim: int
    block_tokens: int
    chosen_blocks: int


def block_indexer_weights(prefix: str, size: BlockIndexer) -> tuple[Weight, ...]:
    """Return the indexer's matrices and norms, `prefix` before their names, whole on every rank."""
    return (
        _matrix(f"{prefix}q_proj.weight", (size.heads * size.head_dim, size.hidden_size)),
        _matrix(f"{prefix}k_proj.weight", (size.head_dim, size.hidden_size)),
        Weight(name=f"{prefix}q_norm.weight", shape=(size.head_dim,), part=Part.NORM),
        Weight(name=f"{prefix}k_norm.weight", shape=(size.head_dim,), part=Part.NORM),
    )


def block_sparse_half(attention: GroupedAttention, indexer: BlockIndexer) -> Half:
    """Return grouped attention to the chosen blocks as the token-mixing half."""
    half = attention_half(attention.with_window(indexer.chosen_blocks * indexer.block_tokens))
    return Half(
        tensors=(
            *half.tensors,
            Tensor(name="index_query", width=indexer.heads * indexer.head_dim),
            Tensor(name="index_key", width=indexer.head_dim),
            Tensor(name="chosen_blocks", width=ELEMENTS_PER_INDEX * indexer.heads * indexer.chosen_blocks),
        ),
        operations=(
            _projection("index_query", indexer.hidden_size, indexer.heads * indexer.head_dim),
            _projection("index_key", indexer.hidden_size, indexer.head_dim),
            Operation(
                name="index_scores",
                kind=OperationKind.ATTENTION,
                inputs=("index_query", "index_key"),
                output="chosen_blocks",
                region=Region.SEQUENCE,
                heads=indexer.heads,
                key_dim=indexer.head_dim,
            ),
            *half.operations,
        ),
    )


def block_sparse_state(attention: GroupedAttention, indexer: BlockIndexer) -> KvState:
    """Return the cache of one such layer: every token's keys and values, and the indexer's key."""
    return dataclasses.replace(attention.kv_state(), index_width=indexer.head_dim)


def _projection(output: str, inputs: int, outputs: int) -> Operation:
    return whole_matmul(f"{output}_projection", "attention_input", output, (inputs, outputs))


def _matrix(name: str, shape: tuple[int, int]) -> Weight:
    return Weight(name=name, shape=shape, part=Part.ATTENTION, is_linear=True)
