"""Decoder layers, embeddings and heads, put together from their halves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from plimsoll.planners.architecture.attention import GroupedAttention, attention_operations, attention_tensors
from plimsoll.planners.architecture.feed_forward import feed_forward_operations, feed_forward_tensors
from plimsoll.planners.architecture.latent_attention import LatentAttention, latent_operations, latent_tensors
from plimsoll.planners.architecture.mixture_of_experts import MixtureOfExperts, mixture_operations, mixture_tensors
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.operation import Operation, OperationKind, Region, Tensor, add, matmul, norm
from plimsoll.planners.architecture.recurrent import RecurrentMixer, recurrent_operations, recurrent_tensors
from plimsoll.planners.architecture.sequence_state import KvState
from plimsoll.planners.architecture.sparse_attention import TokenIndexer, indexer_operations, indexer_tensors
from plimsoll.planners.architecture.weight import Part, Split, Weight


def norm_weights(name: str, hidden_size: int, *, bias: bool = False) -> tuple[Weight, ...]:
    """Return a norm's scale and, for LayerNorm, its bias."""
    scale = Weight(name=f"{name}.weight", shape=(hidden_size,), part=Part.NORM)
    if not bias:
        return (scale,)
    return (scale, Weight(name=f"{name}.bias", shape=(hidden_size,), part=Part.NORM))


class NormPlacement(StrEnum):
    """Where a layer's norms stand.

    `pre` norms each half's input, `post` each half's output (OLMo 2), `sandwich`
    both (Gemma 2); `post_residual` norms the sum of each half and the residual
    stream, as the first transformers did (BERT, OPT-350m); `parallel` norms once
    and adds both halves to the same residual (GPT-J, Falcon, Cohere),
    `parallel_two` with a norm for each half (GPT-NeoX, Falcon-40B).
    """

    PRE = "pre"
    POST = "post"
    SANDWICH = "sandwich"
    POST_RESIDUAL = "post_residual"
    PARALLEL = "parallel"
    PARALLEL_TWO = "parallel_two"


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """One half of a layer: what mixes tokens, or the feed-forward."""

    tensors: tuple[Tensor, ...]
    operations: tuple[Operation, ...]


def attention_half(size: GroupedAttention) -> Half:
    """Return grouped attention as the token-mixing half."""
    return Half(tensors=attention_tensors(size), operations=attention_operations(size))


def latent_attention_half(size: LatentAttention, indexer: TokenIndexer | None = None) -> Half:
    """Return latent attention as the token-mixing half, with the indexer that chooses its tokens where it has one."""
    if indexer is None:
        return Half(tensors=latent_tensors(size), operations=latent_operations(size))
    # The indexer reads the query's latent, which attention computes first.
    first, *others = latent_operations(size)
    return Half(
        tensors=(*latent_tensors(size), *indexer_tensors(indexer)),
        operations=(first, *indexer_operations(indexer), *others),
    )


def recurrent_half(size: RecurrentMixer) -> Half:
    """Return a recurrence as the token-mixing half."""
    return Half(tensors=recurrent_tensors(size), operations=recurrent_operations(size))


def feed_forward_half(hidden_size: int, intermediate_size: int, *, gated: bool) -> Half:
    """Return a dense feed-forward half."""
    return Half(
        tensors=feed_forward_tensors(hidden_size, intermediate_size, gated=gated),
        operations=feed_forward_operations(hidden_size, intermediate_size, gated=gated),
    )


def mixture_half(size: MixtureOfExperts) -> Half:
    """Return a mixture of experts as the feed-forward half."""
    return Half(tensors=mixture_tensors(size), operations=mixture_operations(size))


def decoder_layer(
    *,
    layers: tuple[int, ...],
    hidden_size: int,
    mixer: Half | None,
    cross: Half | None = None,
    feed_forward: Half | None,
    weights: tuple[Weight, ...],
    kv: KvState | None,
    norms: NormPlacement = NormPlacement.PRE,
    kind: str = "decoder_layer",
) -> Block:
    """Return a layer that adds what its halves compute to the residual stream.

    A layer may lack a half (Mamba has no feed-forward; Nemotron-H has layers
    that are only a feed-forward); the decoder of an encoder-decoder has one more,
    `cross`, between the two.
    """
    named = (("attention", mixer), ("cross_attention", cross), ("feed_forward", feed_forward))
    halves = [(name, half) for name, half in named if half]
    is_parallel = norms in (NormPlacement.PARALLEL, NormPlacement.PARALLEL_TWO)
    tensors: list[Tensor] = [Tensor(name="residual", width=hidden_size)]
    operations: list[Operation] = []
    residual = "residual"
    for index, (name, half) in enumerate(halves):
        is_last = index == len(halves) - 1
        total = "layer_output" if is_last else "middle_residual" if index == 0 else "cross_residual"
        source = "residual" if is_parallel else residual
        operations.extend(_normed_half(name, half, source, norms, shares_norm=index > 0))
        output = f"{name}_normed_output" if _norms_output(norms) else f"{name}_output"
        norms_sum = norms is NormPlacement.POST_RESIDUAL
        operations.append(add(f"{name}_add", residual, output, f"{name}_sum" if norms_sum else total))
        if norms_sum:
            tensors.append(Tensor(name=f"{name}_sum", width=hidden_size))
            operations.append(norm(f"{name}_norm", f"{name}_sum", total))
        tensors.extend(half.tensors)
        if _norms_output(norms):
            tensors.append(Tensor(name=output, width=hidden_size))
        if not is_last:
            tensors.append(Tensor(name=total, width=hidden_size))
        residual = total
    return Block(kind=kind, layers=layers, weights=weights, tensors=tuple(tensors), operations=tuple(operations), kv=kv)


def _norms_output(norms: NormPlacement) -> bool:
    return norms in (NormPlacement.POST, NormPlacement.SANDWICH)


def _normed_half(name: str, half: Half, source: str, norms: NormPlacement, *, shares_norm: bool) -> Iterator[Operation]:
    """Yield a half's operations with the norms before and after it."""
    entry = f"{name}_input"
    if norms in (NormPlacement.POST, NormPlacement.POST_RESIDUAL):
        renamed = {entry: source}
    elif norms is NormPlacement.PARALLEL and shares_norm:
        renamed = {entry: "attention_input"}
    else:
        renamed = {}
        yield norm(f"{name}_norm", source, entry)
    for operation in half.operations:
        inputs = tuple(renamed.get(tensor, tensor) for tensor in operation.inputs)
        yield dataclasses.replace(operation, inputs=inputs)
    if _norms_output(norms):
        yield norm(f"{name}_output_norm", f"{name}_output", f"{name}_normed_output")


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


def head_block(weights: tuple[Weight, ...], hidden_size: int, vocabulary_size: int, *, has_norm: bool = True) -> Block:
    """Return the last norm (where there is one), the projection to the vocabulary and the loss."""
    entry = "head_input" if has_norm else "residual"
    return Block(
        kind="head",
        weights=weights,
        tensors=(
            Tensor(name="residual", width=hidden_size),
            *((Tensor(name="head_input", width=hidden_size),) if has_norm else ()),
            Tensor(name="logits", width=vocabulary_size, region=Region.TENSOR),
        ),
        operations=(
            *((norm("final_norm", "residual", "head_input"),) if has_norm else ()),
            matmul("head_projection", entry, "logits", (hidden_size, vocabulary_size)),
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


def with_norms_scaling_in_fp32(model: ModelSpec) -> ModelSpec:
    """Return the model with norms that multiply by their scale before they cast back."""

    def scaled(block: Block) -> Block:
        operations = (
            dataclasses.replace(operation, scales_in_fp32=True) if operation.kind is OperationKind.NORM else operation
            for operation in block.operations
        )
        return dataclasses.replace(block, operations=tuple(operations))

    return dataclasses.replace(model, layers=tuple(scaled(block) for block in model.layers), head=scaled(model.head))
