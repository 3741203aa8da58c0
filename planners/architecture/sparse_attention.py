"""The indexer of sparse attention: it scores all earlier tokens cheaply and chooses those that attention reads.

Source: DeepSeek-V3.2-Exp's report, "DeepSeek Sparse Attention", and
`transformers` 5.23, modeling_deepseek_v32.
"""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.planners.architecture.operation import Operation, OperationKind, Region, Tensor, whole_matmul
from plimsoll.planners.architecture.weight import Part, Weight

# A token's index takes 4 bytes where other activations take 2.
ELEMENTS_PER_INDEX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIndexer:
    """The sizes of one indexer: `heads` queries and one key of `head_dim` features for each token.

    Queries come from latent attention's query latent of `query_rank` features.
    `chosen_tokens` positions are attended to.
    """

    hidden_size: int
    query_rank: int
    heads: int
    head_dim: int
    chosen_tokens: int


def indexer_weights(prefix: str, size: TokenIndexer) -> tuple[Weight, ...]:
    """Return the indexer's matrices and its key's norm, whole on every rank as in vLLM."""
    matrices = (
        ("wq_b", (size.heads * size.head_dim, size.query_rank)),
        ("wk", (size.head_dim, size.hidden_size)),
        ("weights_proj", (size.heads, size.hidden_size)),
    )
    return (
        *(
            Weight(name=f"{prefix}.{name}.weight", shape=shape, part=Part.ATTENTION, is_linear=True)
            for name, shape in matrices
        ),
        Weight(name=f"{prefix}.k_norm.weight", shape=(size.head_dim,), part=Part.NORM),
        Weight(name=f"{prefix}.k_norm.bias", shape=(size.head_dim,), part=Part.NORM),
    )


def indexer_tensors(size: TokenIndexer) -> tuple[Tensor, ...]:
    """Return the indexer's activations; the scores of all positions are never written out."""
    return (
        Tensor(name="index_query", width=size.heads * size.head_dim),
        Tensor(name="index_key", width=size.head_dim),
        Tensor(name="index_weights", width=size.heads),
        Tensor(name="chosen_tokens", width=ELEMENTS_PER_INDEX * size.chosen_tokens),
    )


def indexer_operations(size: TokenIndexer) -> tuple[Operation, ...]:
    """Return the projections, and the scoring of every position by every head.

    A position's score is the heads' weighted sum of dot products: one more
    multiply and add a head, as if each had a value of one feature.
    """
    return (
        _projection("index_query", "query_latent", size.query_rank, size.heads * size.head_dim),
        _projection("index_key", "attention_input", size.hidden_size, size.head_dim),
        _projection("index_weights", "attention_input", size.hidden_size, size.heads),
        Operation(
            name="index_scores",
            kind=OperationKind.ATTENTION,
            inputs=("index_query", "index_key", "index_weights"),
            output="chosen_tokens",
            region=Region.SEQUENCE,
            heads=size.heads,
            key_dim=size.head_dim,
            value_dim=1,
        ),
    )


def _projection(output: str, source: str, inputs: int, outputs: int) -> Operation:
    return whole_matmul(f"{output}_projection", source, output, (inputs, outputs))
