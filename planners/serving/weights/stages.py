"""A replica's weights: which pipeline stage and rank holds what, to the byte."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import lru_cache

from plimsoll.planners.architecture import Block, KvKind, ModelSpec, OperationKind, Part, Split, Weight
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.quantization.stacks import QuantizedStack, weight_bytes
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.formats.weight_format import WeightFormat
from plimsoll.planners.serving.weights.placement import copies_plain_latents, policy_of
from plimsoll.planners.sharding import ShardingPolicy, ShardLayout
from plimsoll.planners.sharding.stages import last_but_one_first
from plimsoll.planners.sharding.weights import checkpoint_tensor, expert_span, is_expert

MATRIX = 2  # dimensions
# Divisions of models that later questions and other layouts ask for again.
MOST_KEPT_RANKS = 4096
PADDED_STACK = "gpt-oss-mxfp4"
EXPERT_INNER_MULTIPLE, EXPERT_HIDDEN_MULTIPLE = 128, 256
LATENT_UP_PROJECTION = "kv_b_proj.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline stage of one rank: its layers and the bytes of its weights.

    `buffer_bytes` is the rotary table and the workspace for latents that every stage keeps; `read_bytes` is what every
    decode step reads: the layers and the head, but neither the embedding's rows nor
    the experts, whose `expert_bytes` are read only as far as tokens are sent to them.
    """

    index: int
    layers: range
    weight_bytes: int
    buffer_bytes: int
    read_bytes: int
    expert_bytes: int
    has_head: bool

    @property
    def total_bytes(self) -> int:
        """Return weights and buffers."""
        return self.weight_bytes + self.buffer_bytes


def stage_layers(num_layers: int, pipeline_parallel: int) -> tuple[range, ...]:
    """Return each stage's layers, as the engine deals them out."""
    ends = tuple(itertools.accumulate(last_but_one_first(num_layers, pipeline_parallel)))
    return tuple(range(start, end) for start, end in zip((0, *ends), ends, strict=False))


def replica_stages(
    model: ModelSpec, fmt: WeightFormat, degrees: Degrees, *, engine: str, latent_workspace_bytes: int = 0
) -> tuple[Stage, ...]:
    """Return what one rank of each pipeline stage of a replica holds.

    The embedding stands on the first stage and the head on the last; a tied head
    on another stage than the embedding is a second copy. A model of latents keeps
    `latent_workspace_bytes` more on every stage.
    """
    held = _rank_bytes(ByIdentity(model), fmt, degrees.shard_layout, policy_of(engine), copies_plain_latents(engine))
    has_latents = any(block.kv is not None and block.kv.kind is KvKind.LATENT for block in model.layers)
    workspace = latent_workspace_bytes if has_latents else 0
    pipeline_parallel = degrees.pipeline_parallel
    stages = []
    for index, layers in enumerate(stage_layers(model.num_layers, pipeline_parallel)):
        is_first, is_last = index == 0, index == pipeline_parallel - 1
        counts = [_layers_within(block, layers) for block in model.layers]
        own = sum(size * count for size, count in zip(held.layers, counts, strict=True))
        experts = sum(size * count for size, count in zip(held.experts, counts, strict=True))
        tied_copy = held.table if is_last and model.tied_head and not is_first else 0
        tied_read = held.table if is_last and model.tied_head else 0
        head_bytes = held.head if is_last else 0
        stages.append(
            Stage(
                index=index,
                layers=layers,
                weight_bytes=own + (held.embedding if is_first else 0) + head_bytes + tied_copy,
                buffer_bytes=held.buffers + workspace,
                read_bytes=own - experts + head_bytes + tied_read,
                expert_bytes=experts,
                has_head=is_last,
            )
        )
    return tuple(stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankBytes:
    """One rank's bytes: a layer of each block, the experts of it, the ends, the token table, the rotary tables."""

    layers: tuple[int, ...]
    experts: tuple[int, ...]
    embedding: int
    head: int
    table: int
    buffers: int


@lru_cache(maxsize=MOST_KEPT_RANKS)
def _rank_bytes(
    same: ByIdentity[ModelSpec], fmt: WeightFormat, layout: ShardLayout, policy: ShardingPolicy, copies_plain: bool
) -> _RankBytes:
    """Return what a rank of this division holds; pipelines share it."""
    model = same.value
    placed = _Placement(
        fmt=fmt, stack=fmt.stack_of(model), layout=layout, policy=policy, copies_plain_latents=copies_plain
    )
    return _RankBytes(
        layers=tuple(_block_bytes(block, placed) for block in model.layers),
        experts=tuple(_expert_bytes(block, placed) for block in model.layers),
        embedding=_block_bytes(model.embedding, placed),
        head=_block_bytes(model.head, placed),
        table=_token_embedding_bytes(model.embedding, placed),
        buffers=rotary_table_bytes(model, fmt),
    )


def rotary_table_bytes(model: ModelSpec, fmt: WeightFormat) -> int:
    """Return the table of cosines and sines for every position, which no rank divides.

    Source: vllm/model_executor/layers/rotary_embedding: [positions, rotary width]
    in the model's dtype; 0.03 GiB for Llama-3.1's 131,072 positions.
    """
    rows = (model.max_position_embeddings or 0) * (model.interpolated_tables + 1)
    widths = {
        int(_rotary_width(block) * model.rotary_fraction)
        for block in model.layers
        if any(operation.kind is OperationKind.ROTARY for operation in block.operations)
    }
    return sum(rows * width * fmt.dense_bytes for width in widths)


def _rotary_width(block: Block) -> int:
    """Return the features of a key that turn with its position: all, but of a latent's those beside the rank."""
    if block.kv is not None and block.kv.kind is KvKind.LATENT:
        ranks = [
            operation.matmul_shape[0]
            for operation in block.operations
            if operation.matmul_shape is not None and "key_value_latent" in operation.inputs
        ]
        return block.kv.latent_width - max(ranks)
    return max(operation.key_dim for operation in block.operations if operation.kind is OperationKind.ATTENTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placement:
    """In which format weights are stored and by whose rules divided, and whether plain up-projections are copied."""

    fmt: WeightFormat
    stack: QuantizedStack | None
    layout: ShardLayout
    policy: ShardingPolicy
    copies_plain_latents: bool


def _local_weight_bytes(weight: Weight, placed: _Placement) -> int:
    """Return one rank's bytes of a weight in the serving format, all its experts of the layer counted."""
    fmt, stack, layout, policy = placed.fmt, placed.stack, placed.layout, placed.policy
    shape = checkpoint_tensor(weight, layout, policy)
    tensors = weight.tensors
    if is_divided_vision(weight, layout.tensor_parallel):
        return math.prod(shape) * fmt.dense_bytes // layout.tensor_parallel
    if is_expert(weight) and not weight.is_fused:
        first, last = expert_span(weight.experts, layout.expert_parallel, 0, policy)
        tensors = last - first
    if stack is None:
        return tensors * math.prod(shape) * fmt.dense_bytes
    if stack.name == PADDED_STACK and is_expert(weight) and weight.is_linear:
        shape = _padded_experts(weight, shape)
    return tensors * weight_bytes(weight, stack, kept_bytes=fmt.dense_bytes, shape=shape)


def _padded_experts(weight: Weight, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of experts in mxfp4 as their kernels want it.

    Source: vllm/model_executor/layers/quantization/mxfp4.py, create_weights, for Marlin. gpt-oss-20b's logs:
    13.72 GiB on an A100 (planned 13.69), 7.01 a rank of two H100, whose kernel lays them out otherwise (7.08).
    """
    if weight.dim is None:
        return shape
    last = len(shape) - 1
    hidden = last if weight.dim == last - 1 else last - 1
    halves = 2 if weight.is_fused and weight.split is Split.COLUMN else 1
    padded = list(shape)
    inner = shape[weight.dim] // halves
    padded[weight.dim] = halves * -(-inner // EXPERT_INNER_MULTIPLE) * EXPERT_INNER_MULTIPLE
    padded[hidden] = -(-shape[hidden] // EXPERT_HIDDEN_MULTIPLE) * EXPERT_HIDDEN_MULTIPLE
    return tuple(padded)


def is_divided_vision(weight: Weight, tensor_parallel: int) -> bool:
    """Return whether a vision tower's weight is divided over the ranks, as its linear layers are.

    Source: vllm/model_executor/models/siglip.py, pixtral.py, mllama4.py: QKVParallelLinear,
    ColumnParallelLinear and RowParallelLinear. Mistral-Small-3.1's log at degree 2 and
    Llama-4-Scout's at degree 4 are met so.
    """
    return weight.part is Part.VISION and len(weight.shape) == MATRIX and math.prod(weight.shape) % tensor_parallel == 0


def has_vision(model: ModelSpec) -> bool:
    """Return whether a vision tower stands before the decoder."""
    return any(weight.part is Part.VISION for block in model.blocks for weight in block.weights)


def _block_bytes(block: Block, placed: _Placement) -> int:
    return sum(_local_weight_bytes(weight, placed) for weight in block.weights) + _absorbed_bytes(block, placed)


def _absorbed_bytes(block: Block, placed: _Placement) -> int:
    """Return the second copy of a latent's up-projection, in the model's dtype, that decoding multiplies queries by.

    A matrix in that dtype needs none in vLLM, which takes views of it.

    Source: vllm/model_executor/layers/attention/mla_attention.py, process_weights_after_loading: W_UK_T, W_UV.
    """
    if block.kv is None or block.kv.kind is not KvKind.LATENT:
        return 0
    plain = replace(placed, stack=None)
    ups = [weight for weight in block.weights if LATENT_UP_PROJECTION in weight.name]
    copies = {weight.name: _local_weight_bytes(weight, plain) for weight in ups}
    return sum(
        copies[weight.name]
        for weight in ups
        if placed.copies_plain_latents or copies[weight.name] != _local_weight_bytes(weight, placed)
    )


def _expert_bytes(block: Block, placed: _Placement) -> int:
    return sum(_local_weight_bytes(weight, placed) for weight in block.weights if is_expert(weight))


def _token_embedding_bytes(embedding: Block, placed: _Placement) -> int:
    return sum(_local_weight_bytes(weight, placed) for weight in embedding.weights if weight.split is Split.VOCABULARY)


def _layers_within(block: Block, layers: range) -> int:
    return bisect_left(block.layers, layers.stop) - bisect_left(block.layers, layers.start)
