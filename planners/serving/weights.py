"""A replica's weights: which pipeline stage and rank holds what, to the byte."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from dataclasses import dataclass

from planners.architecture import Block, ModelSpec, OperationKind, Part, Split, Weight
from planners.errors import ImpossibleLayout, NotYetAvailable
from planners.quantized_stacks import QuantizedStack, weight_bytes
from planners.serving.weight_format import WeightFormat
from planners.sharding import POLICIES, ShardLayout
from planners.sharding.stages import last_but_one_first
from planners.sharding.weights import checkpoint_tensor

VLLM = POLICIES["vllm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline stage of one rank: its layers and the bytes of its weights.

    `buffer_bytes` is the rotary table every stage keeps; `read_bytes` is what one
    decode step reads: the layers and the head, but not the embedding's rows.
    """

    index: int
    layers: range
    weight_bytes: int
    buffer_bytes: int
    read_bytes: int
    has_head: bool

    @property
    def total_bytes(self) -> int:
        """Return weights and buffers."""
        return self.weight_bytes + self.buffer_bytes


def stage_layers(num_layers: int, pipeline_parallel: int) -> tuple[range, ...]:
    """Return each stage's layers, as the engine deals them out."""
    ends = tuple(itertools.accumulate(last_but_one_first(num_layers, pipeline_parallel)))
    return tuple(range(start, end) for start, end in zip((0, *ends), ends, strict=False))


def padded_vocabulary(size: int) -> int:
    """Return a vocabulary's rows as the engine allocates them."""
    return VLLM.vocabulary_rows(size, 1)


def tensor_parallel_obstacle(model: ModelSpec, tensor_parallel: int) -> str | None:
    """Return why the model cannot be divided over so many ranks, or None."""
    if model.attention_heads % tensor_parallel:
        return f"{model.attention_heads} attention heads do not divide by {tensor_parallel}."
    kv_heads = model.key_value_heads
    if kv_heads % tensor_parallel and tensor_parallel % kv_heads:
        return f"{kv_heads} key-value heads neither divide by {tensor_parallel} nor divide it."
    for weight in (weight for block in model.blocks for weight in block.weights):
        if weight.dim is None or weight.units:
            continue
        length = weight.shape[weight.dim]
        if weight.split is Split.VOCABULARY:
            length = padded_vocabulary(length)
        if length % tensor_parallel:
            return f"dimension {length} of {weight.name} does not divide by {tensor_parallel}."
    return None


def check_tensor_parallel(model: ModelSpec, tensor_parallel: int) -> None:
    """Raise `ImpossibleLayout` if the heads or matrices forbid so many ranks."""
    obstacle = tensor_parallel_obstacle(model, tensor_parallel)
    if obstacle is not None:
        raise ImpossibleLayout(
            f"tensor_parallel {tensor_parallel} is impossible: {obstacle}",
            rule="tensor-parallel-divides",
            pointer="/layout/tensor_parallel",
        )


def check_dense(model: ModelSpec) -> None:
    """Raise `NotYetAvailable` for a model with experts."""
    if any(weight.part is Part.EXPERT for block in model.layers for weight in block.weights):
        raise NotYetAvailable(f"Serving of models with experts ({model.name}) is not planned yet.", pointer="/model")


def replica_stages(
    model: ModelSpec, fmt: WeightFormat, *, tensor_parallel: int, pipeline_parallel: int
) -> tuple[Stage, ...]:
    """Return what one rank of each pipeline stage of a replica holds.

    The embedding stands on the first stage and the head on the last; a tied head
    on another stage than the embedding is a second copy.
    """
    stack = fmt.stack_of(model)
    layer_bytes = [_block_bytes(block, fmt, stack, tensor_parallel) for block in model.layers]
    embedding = _block_bytes(model.embedding, fmt, stack, tensor_parallel)
    head = _block_bytes(model.head, fmt, stack, tensor_parallel)
    table = _token_embedding_bytes(model.embedding, fmt, stack, tensor_parallel)
    buffer_bytes = rotary_table_bytes(model, fmt)
    stages = []
    for index, layers in enumerate(stage_layers(model.num_layers, pipeline_parallel)):
        is_first, is_last = index == 0, index == pipeline_parallel - 1
        own = sum(size * _layers_within(block, layers) for size, block in zip(layer_bytes, model.layers, strict=True))
        tied_copy = table if is_last and model.tied_head and not is_first else 0
        tied_read = table if is_last and model.tied_head else 0
        head_bytes = head if is_last else 0
        stages.append(
            Stage(
                index=index,
                layers=layers,
                weight_bytes=own + (embedding if is_first else 0) + head_bytes + tied_copy,
                buffer_bytes=buffer_bytes,
                read_bytes=own + head_bytes + tied_read,
                has_head=is_last,
            )
        )
    return tuple(stages)


def rotary_table_bytes(model: ModelSpec, fmt: WeightFormat) -> int:
    """Return the table of cosines and sines for every position, which no rank divides.

    Source: vllm/model_executor/layers/rotary_embedding: [positions, rotary width]
    in the model's dtype; 0.03 GiB for Llama-3.1's 131,072 positions.
    """
    positions = model.max_position_embeddings or 0
    widths = {
        operation.key_dim
        for block in model.layers
        if any(operation.kind is OperationKind.ROTARY for operation in block.operations)
        for operation in block.operations
        if operation.kind is OperationKind.ATTENTION
    }
    return sum(positions * width * fmt.dense_bytes for width in widths)


def local_weight_bytes(weight: Weight, fmt: WeightFormat, stack: QuantizedStack | None, tensor_parallel: int) -> int:
    """Return one rank's bytes of a weight in the serving format, all experts of the layer counted."""
    shape = checkpoint_tensor(weight, ShardLayout(tensor_parallel=tensor_parallel), VLLM)
    if stack is None:
        return weight.tensors * math.prod(shape) * fmt.dense_bytes
    return weight.tensors * weight_bytes(weight, stack, kept_bytes=fmt.dense_bytes, shape=shape)


def _block_bytes(block: Block, fmt: WeightFormat, stack: QuantizedStack | None, tensor_parallel: int) -> int:
    return sum(local_weight_bytes(weight, fmt, stack, tensor_parallel) for weight in block.weights)


def _token_embedding_bytes(
    embedding: Block, fmt: WeightFormat, stack: QuantizedStack | None, tensor_parallel: int
) -> int:
    return sum(
        local_weight_bytes(weight, fmt, stack, tensor_parallel)
        for weight in embedding.weights
        if weight.split is Split.VOCABULARY
    )


def _layers_within(block: Block, layers: range) -> int:
    return bisect_left(block.layers, layers.stop) - bisect_left(block.layers, layers.start)
