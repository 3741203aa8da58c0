"""Decoder layers, embeddings and heads, put together from their halves."""

from __future__ import annotations

from planners.architecture.attention import GroupedAttention, attention_operations, attention_tensors
from planners.architecture.feed_forward import feed_forward_operations, feed_forward_tensors
from planners.architecture.model import Block
from planners.architecture.operation import Operation, OperationKind, Region, Tensor
from planners.architecture.weight import Part, Split, Weight


def norm_weights(name: str, hidden_size: int, *, bias: bool = False) -> tuple[Weight, ...]:
    """Return a norm's scale and, for LayerNorm, its bias."""
    scale = Weight(name=f"{name}.weight", shape=(hidden_size,), part=Part.NORM)
    if not bias:
        return (scale,)
    return (scale, Weight(name=f"{name}.bias", shape=(hidden_size,), part=Part.NORM))


def pre_norm_layer(
    *,
    layers: tuple[int, ...],
    attention: GroupedAttention,
    intermediate_size: int,
    gated: bool,
    weights: tuple[Weight, ...],
) -> Block:
    """Return a layer that adds attention and then a feed-forward to the residual stream."""
    hidden_size = attention.hidden_size
    return Block(
        kind="decoder_layer",
        layers=layers,
        weights=weights,
        tensors=(
            Tensor(name="residual", width=hidden_size),
            *attention_tensors(attention),
            Tensor(name="middle_residual", width=hidden_size),
            *feed_forward_tensors(hidden_size, intermediate_size, gated=gated),
        ),
        operations=(
            _norm("attention_norm", "residual", "attention_input"),
            *attention_operations(attention),
            _add("attention_add", "residual", "attention_output", "middle_residual"),
            _norm("feed_forward_norm", "middle_residual", "feed_forward_input"),
            *feed_forward_operations(hidden_size, intermediate_size, gated=gated),
            _add("feed_forward_add", "middle_residual", "feed_forward_output", "layer_output"),
        ),
        kv=attention.kv_state(),
    )


def embedding_block(weights: tuple[Weight, ...], hidden_size: int) -> Block:
    """Return the token embedding (and position embedding, where there is one)."""
    return Block(
        kind="embedding",
        weights=weights,
        tensors=(Tensor(name="residual", width=hidden_size),),
        operations=(
            Operation(
                name="embedding",
                kind=OperationKind.EMBEDDING,
                inputs=(),
                output="residual",
                region=Region.SEQUENCE,
            ),
        ),
    )


def head_block(weights: tuple[Weight, ...], hidden_size: int, vocabulary_size: int) -> Block:
    """Return the last norm, the projection to the vocabulary and the loss."""
    return Block(
        kind="head",
        weights=weights,
        tensors=(
            Tensor(name="residual", width=hidden_size),
            Tensor(name="head_input", width=hidden_size),
            Tensor(name="logits", width=vocabulary_size, region=Region.TENSOR),
        ),
        operations=(
            _norm("final_norm", "residual", "head_input"),
            Operation(
                name="head_projection",
                kind=OperationKind.MATMUL,
                inputs=("head_input",),
                output="logits",
                matmul_shape=(hidden_size, vocabulary_size),
            ),
            Operation(name="loss", kind=OperationKind.LOSS, inputs=("logits",), output="loss"),
        ),
    )


def vocabulary_weight(name: str, vocabulary_size: int, hidden_size: int, part: Part) -> Weight:
    """Return an embedding or head matrix, its rows divided over tensor-parallel ranks."""
    return Weight(
        name=name,
        shape=(vocabulary_size, hidden_size),
        part=part,
        split=Split.VOCABULARY,
        dim=0,
        is_linear=part is Part.HEAD,
    )


def _norm(name: str, source: str, output: str) -> Operation:
    return Operation(name=name, kind=OperationKind.NORM, inputs=(source,), output=output, region=Region.SEQUENCE)


def _add(name: str, left: str, right: str, output: str) -> Operation:
    return Operation(name=name, kind=OperationKind.ADD, inputs=(left, right), output=output, region=Region.SEQUENCE)
