"""The values every axis of the search may take, multiplied out into candidate arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from planners.layout.candidates import (
    ALL_LAYERS,
    FULL,
    NONE,
    OFFLOAD_TARGETS,
    RECOMPUTE_MODES,
    SELECTIVE,
    Candidates,
    IntArray,
)
from planners.layout.experts import over_expert_degrees
from planners.memory.job import Job
from planners.questions import LayoutRequest, TrainingQuestion

# Values worth trying where the client fixed none. Tensor parallelism beyond a node crosses the slow links in every
# layer, and odd factors win nothing; a client who fixes such a degree gets it planned.
MICRO_BATCH_SIZES = (1, 2, 4, 8, 16, 32)
CONTEXT_DEGREES = (1, 2, 4, 8, 16)
SHORTEST_CONTEXT_SHARE = 8192  # tokens a rank should at least keep of a sequence
VIRTUAL_STAGES = (1, 2, 3, 4, 5, 6, 8)
PARTIAL_RECOMPUTE_SHARES = (0.25, 0.5, 0.75)
# A longer range of node counts is thinned to powers of two; the fewest are looked for in so many steps an octave.
MOST_NODE_COUNTS = 16
STEPS_AN_OCTAVE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Degrees of one mesh shape each (arrays), and the choices independent of it (tuples)."""

    mesh: dict[str, IntArray]
    micro_batch_sizes: tuple[int, ...]
    zero_stages: tuple[int, ...]
    sequence_parallel: tuple[bool, ...]
    recompute: tuple[tuple[int, float], ...]
    offload: tuple[int, ...]
    fused_cross_entropy: tuple[bool, ...]


def candidate_layouts(
    question: TrainingQuestion, job: Job, gpus: IntArray, *, with_offload: bool = False
) -> Candidates:
    """Return every layout of the allowed axes for each of the GPU counts, rules not yet applied.

    Offload nobody asked for is left for a second search (`with_offload`), because
    it costs host memory and a slow link that other layouts do not need.
    """
    axes = _axes(question, job, gpus, with_offload=with_offload)
    sizes = (
        axes.mesh["data_parallel"].size,
        len(axes.micro_batch_sizes),
        len(axes.zero_stages),
        len(axes.sequence_parallel),
        len(axes.recompute),
        len(axes.offload),
        len(axes.fused_cross_entropy),
    )
    index = [grid.ravel() for grid in np.indices(sizes, dtype=np.int32)]
    mesh = {name: values[index[0]] for name, values in axes.mesh.items()}
    modes = np.array([mode for mode, _ in axes.recompute])[index[4]]
    shares = np.array([share for _, share in axes.recompute])[index[4]]
    layers = np.maximum(job.model.num_layers // mesh["pipeline_parallel"], 1)
    fixed_layers = question.recompute.full_layers if question.recompute else None
    partial = np.maximum(np.floor(layers * shares), 1).astype(np.int64) if fixed_layers is None else fixed_layers
    layouts = Candidates(
        **mesh,
        sequence_parallel=np.array(axes.sequence_parallel)[index[3]] & (mesh["tensor_parallel"] > 1),
        zero_stage=np.array(axes.zero_stages)[index[2]],
        offload=np.array(axes.offload)[index[5]],
        micro_batch_size=np.array(axes.micro_batch_sizes)[index[1]],
        recompute=modes,
        full_layers=np.where((shares < 1.0) | (fixed_layers is not None), partial, ALL_LAYERS),
        fused_cross_entropy=np.array(axes.fused_cross_entropy)[index[6]],
    )
    return _without_repeats(layouts)


def gpu_counts(question: TrainingQuestion) -> list[IntArray]:
    """Return the GPU counts to plan for, in the batches in which they are tried.

    A fixed number is one batch of one. A range is one batch: below a node every
    count, above it whole nodes, thinned to powers of two where it is long. Where
    the fewest are asked for, ever larger batches follow one another.
    """
    count, node = question.hardware.gpus, question.hardware.gpus_per_node
    if count.minimum == count.maximum:
        return [np.array([count.minimum])]
    within = [number for number in range(1, node + 1) if count.minimum <= number <= count.maximum]
    nodes = [node * number for number in range(2, count.maximum // node + 1) if node * number >= count.minimum]
    if not count.is_free:
        thinned = (
            nodes
            if len(nodes) <= MOST_NODE_COUNTS
            else [number for number in nodes if _is_power_of_two(number // node)]
        )
        ends = [count.minimum, count.maximum]
        return [np.array(sorted({*within, *thinned, *ends}))]
    batches = [np.array(within)] if within else []
    for octave in range(1, count.maximum.bit_length()):
        # Below 16 nodes every count, above that eight counts an octave.
        step = max(2**octave // STEPS_AN_OCTAVE, 1)
        some = [node * number for number in range(2**octave, 2 ** (octave + 1), step)]
        kept = [number for number in some if count.minimum <= number <= count.maximum]
        if kept:
            batches.append(np.array(kept))
    return batches or [np.array([count.minimum])]


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _axes(question: TrainingQuestion, job: Job, gpus: IntArray, *, with_offload: bool) -> Axes:
    request, can = question.layout, job.profile.can
    fused = (question.fused_cross_entropy,) if question.fused_cross_entropy is not None else (False, True)
    searched = tuple(name for name in can.offload if (name != "none") is with_offload)
    offloads = searched if request.offload is None else (request.offload,)
    return Axes(
        mesh=over_expert_degrees(_meshes(question, job, gpus), question, job),
        micro_batch_sizes=(question.micro_batch_size,) if question.micro_batch_size else _micro_batches(question),
        zero_stages=_zero_stages(request, can.zero_stages),
        sequence_parallel=(
            (request.sequence_parallel,) if request.sequence_parallel is not None else tuple(can.sequence_parallel)
        ),
        recompute=_recompute(question, job),
        offload=tuple(OFFLOAD_TARGETS.index(name) for name in offloads),
        fused_cross_entropy=tuple(
            choice for choice in fused if not choice or can.fused_cross_entropy or len(fused) == 1
        ),
    )


def _micro_batches(question: TrainingQuestion) -> tuple[int, ...]:
    return tuple(size for size in MICRO_BATCH_SIZES if size <= question.global_batch_size)


def _recompute(question: TrainingQuestion, job: Job) -> tuple[tuple[int, float], ...]:
    """Return (mode, share of the stage's layers) pairs; 1.0 means all layers."""
    if question.recompute is not None:
        return ((RECOMPUTE_MODES.index(question.recompute.mode), 1.0),)
    modes = job.profile.can.recompute
    choices: list[tuple[int, float]] = [(NONE, 1.0)]
    # Throwing the scores away gains nothing where flash attention never keeps them.
    gains = job.profile.can.selective_policy != "attention_scores" or question.attention == "eager"
    if "selective" in modes and gains:
        choices.append((SELECTIVE, 1.0))
    if "full_layers" in modes:
        choices.extend((FULL, share) for share in PARTIAL_RECOMPUTE_SHARES)
    if "full" in modes:
        choices.append((FULL, 1.0))
    return tuple(choices)


def _zero_stages(request: LayoutRequest, able: tuple[int, ...]) -> tuple[int, ...]:
    """Return the stages to try; who fixes a shard group wants something sharded over it."""
    if request.zero_stage is not None:
        return (request.zero_stage,)
    return able if request.shard_group is None else tuple(stage for stage in able if stage > 0)


def _meshes(question: TrainingQuestion, job: Job, gpus: IntArray) -> dict[str, IntArray]:
    """Return mesh shapes: tensor, pipeline and context degrees, data parallelism making up the rest."""
    request, can, model = question.layout, job.profile.can, job.model
    node = question.hardware.gpus_per_node
    tensor = _choices(request.tensor_parallel, can.tensor_parallel, range(1, node + 1))
    pipeline = _choices(request.pipeline_parallel, can.pipeline_parallel, range(1, model.num_layers + 1))
    most_context = max(question.sequence_length // SHORTEST_CONTEXT_SHARE, 1)
    contexts = [degree for degree in CONTEXT_DEGREES if degree <= most_context]
    context = _choices(request.context_parallel, can.context_parallel, contexts)
    virtual = _choices(request.virtual_pipeline, can.virtual_pipeline, VIRTUAL_STAGES)
    shape = np.array(np.meshgrid(gpus, tensor, pipeline, context, virtual, indexing="ij")).reshape(5, -1)
    total, tensors, pipelines, contexts_of, virtuals = shape
    model_ranks = tensors * pipelines * contexts_of
    data = total // model_ranks
    exists = (
        (data * model_ranks == total)
        & (data > 0)
        & ((virtuals == 1) | (pipelines > 1) | (request.virtual_pipeline is not None))
    )
    if request.data_parallel is not None:
        exists &= data == request.data_parallel
    kept = [values[exists].astype(np.int64) for values in (data, tensors, pipelines, contexts_of, virtuals)]
    groups = _shard_groups(question, job, kept[0], kept[1], kept[3])
    names = ("data_parallel", "tensor_parallel", "pipeline_parallel", "context_parallel", "virtual_pipeline")
    columns = {name: np.concatenate([values] * len(groups)) for name, values in zip(names, kept, strict=True)}
    return {**columns, "shard_group": np.concatenate(groups)}


def _shard_groups(
    question: TrainingQuestion, job: Job, data: IntArray, tensor: IntArray, context: IntArray
) -> list[IntArray]:
    """Return shard groups to try for each mesh: all replicas, and those within a node."""
    if question.layout.shard_group is not None:
        return [np.full_like(data, question.layout.shard_group)]
    if not job.profile.can.shard_group:
        return [data]
    in_node = np.maximum(question.hardware.gpus_per_node // (tensor * context), 1)
    return [data, np.where(data % in_node == 0, np.minimum(in_node, data), data)]


def _choices(fixed: int | None, able: bool, values: object) -> list[int]:
    if fixed is not None:
        return [fixed]
    return list(values) if able else [1]  # type: ignore[call-overload]


def _without_repeats(layouts: Candidates) -> Candidates:
    """Drop choices that change nothing: a group that is all replicas, stages with nothing to shard over."""
    columns = np.stack([getattr(layouts, entry.name).astype(np.int64) for entry in fields(Candidates)])
    # A group matters only to what is sharded, and stage 0 shards nothing.
    position = [entry.name for entry in fields(Candidates)].index("shard_group")
    columns[position] = np.where(layouts.zero_stage == 0, layouts.data_parallel, columns[position])
    weights = _mixing_weights(columns)
    _, first = np.unique(weights @ columns, return_index=True)
    kept = layouts.take(np.sort(first))
    return Candidates(
        **{
            entry.name: np.where(kept.zero_stage == 0, kept.data_parallel, kept.shard_group)
            if entry.name == "shard_group"
            else getattr(kept, entry.name)
            for entry in fields(Candidates)
        }
    )


def _mixing_weights(columns: IntArray) -> IntArray:
    """Return place values, so that different columns give different numbers."""
    spans = (
        columns.max(axis=1) - columns.min(axis=1) + 1 if columns.shape[1] else np.ones(columns.shape[0], dtype=np.int64)
    )
    return np.concatenate([[1], np.cumprod(spans[:-1])]).astype(np.int64)
