"""The usual values of every axis of the search, as a grid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from plimsoll.planners.ground.terms import HIGHEST_ZERO_STAGE, OFFLOADS, RECOMPUTE_MODES
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import ALL_LAYERS, FULL, NONE, SELECTIVE, BoolArray, Candidates, IntArray
from plimsoll.planners.layouts.experts import over_expert_degrees
from plimsoll.planners.layouts.grid import Grid, grid_of
from plimsoll.planners.layouts.stages import longest_stages
from plimsoll.planners.memory.preference_loss import compares
from plimsoll.planners.questions import LayoutRequest, TrainingQuestion
from plimsoll.planners.search.bases import (
    ALL_TO_ALL,
    SECONDARY,
    are_chunks_finer,
    only,
    with_expert_overlap,
    with_needed_exchange,
    with_pipeline_layouts,
)
from plimsoll.planners.search.rules.fields import DEGREES
from plimsoll.planners.stacks.records import Capabilities

# Values worth trying where the client fixed none. Tensor parallelism beyond a node crosses the slow links in every
# layer, and odd factors win nothing; a client who fixes such a degree gets it planned.
MICRO_BATCH_SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
CONTEXT_DEGREES = (1, 2, 4, 8, 16)
SHORTEST_CONTEXT_SHARE = 8192  # tokens a rank should at least keep of a sequence
VIRTUAL_STAGES = (1, 2, 3, 4, 5, 6, 8)
ASKED_MODULES: IntArray = np.zeros(1, dtype=np.int64)
NOT_HIDDEN: BoolArray = np.zeros(1, dtype=bool)
PARTIAL_RECOMPUTE_SHARES = tuple(eighths / 8 for eighths in range(1, 8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Degrees of one mesh shape each (arrays), and the micro-batch sizes that go with all of them.

    `repeats_whole_group` marks a mesh that differs from another one by its shard group only.
    """

    mesh: dict[str, IntArray]
    repeats_whole_group: BoolArray
    micro_batch_sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What may be chosen on every mesh alike.

    `offload` has pairs of what goes to the host of the states and whether activations do, `recompute` pairs of a mode
    and the share of a stage's layers. Behind those stand `full_layers`, numbers of a stage's layers that are recomputed
    in full, and `module_sets`, places of those of the job's sets of modules that are recomputed in all layers.
    """

    zero_stages: tuple[int, ...]
    offload: tuple[tuple[int, bool], ...]
    recompute: tuple[tuple[int, float], ...]
    fused_cross_entropy: tuple[bool, ...]
    full_layers: tuple[int, ...] = ()
    module_sets: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Return how many layouts they make of a base."""
        recompute = len(self.recompute) + len(self.full_layers) + len(self.module_sets)
        return len(self.zero_stages) * len(self.offload) * recompute * len(self.fused_cross_entropy)

    def least_recomputed(self) -> Choices:
        """Return the choices with those of recomputation that can take least: the first, or any set of modules."""
        return replace(self, recompute=self.recompute[:1], full_layers=() if self.recompute else self.full_layers[:1])


def candidate_grid(question: TrainingQuestion, job: Job, gpus: IntArray) -> Grid:
    """Return every layout of the usual axes for each of the GPU counts, rules not yet applied.

    Offload nobody asked for is not among them: what lies beyond is timed first (`planners/search/beyond.py`).
    """
    axes = _axes(question, job, gpus)
    # A base is a mesh with a micro-batch size, every mesh with every size.
    sizes = np.array(axes.micro_batch_sizes, dtype=np.int64)
    bases = {name: np.repeat(values, sizes.size) for name, values in axes.mesh.items()}
    bases["micro_batch_size"] = np.tile(sizes, axes.mesh["data_parallel"].size)
    bases["is_smaller_group"] = np.repeat(axes.repeats_whole_group, sizes.size)
    bases = with_expert_overlap(with_needed_exchange(bases, question, job), question, job)
    grid = grid_over(question, job, bases, choices_of(question, job))
    is_smaller_group = bases["is_smaller_group"]
    return replace(grid, distinct=grid.distinct & ~(is_smaller_group & (grid.layouts.zero_stage == 0)))


def choices_of(question: TrainingQuestion, job: Job) -> Choices:
    """Return what may be chosen on every mesh alike, without offload that nobody asked for."""
    # TRL's preference trainer has a fused head of its own, and refuses another.
    can, fused = job.profile.can, (False,) if compares(job) else (False, True)
    if question.fused_cross_entropy is not None:
        fused = (question.fused_cross_entropy,)
    return Choices(
        zero_stages=_zero_stages(question.layout, can.zero_stages),
        offload=offload_choices(question, can)[:1],
        recompute=_recompute(question, job),
        fused_cross_entropy=tuple(
            choice for choice in fused if not choice or can.fuses_loss_of(job.model.model_type) or len(fused) == 1
        ),
    )


def grid_over(question: TrainingQuestion, job: Job, bases: Mapping[str, IntArray], choices: Choices) -> Grid:
    """Return the grid of some bases, each array one entry a base, with every choice."""
    stages = np.array([(stage, *moved) for stage in choices.zero_stages for moved in choices.offload], dtype=np.int64)
    zero_stage, offload, activation_offload = stages.reshape(-1, 3, 1).swapaxes(0, 1)
    modes = _along_recompute(
        *(mode for mode, _ in choices.recompute),
        *(FULL for _ in choices.full_layers),
        *(SELECTIVE for _ in choices.module_sets),
    )
    asked_modules = (0 for _ in (*choices.recompute, *choices.full_layers))
    full_layers = _full_layers(question, job, choices, bases["pipeline_parallel"])
    # A client's own number of layers is planned as it is.
    is_searched, layers = question.recompute is None, job.model.num_layers
    longest = stage_layers(bases, job) if choices.full_layers else job.model.num_layers // bases["pipeline_parallel"]
    is_all = full_layers >= longest if choices.full_layers else full_layers * bases["pipeline_parallel"] >= layers
    is_whole = is_all & is_searched
    degrees = {name: bases[name] for name in (*DEGREES, "pipeline_layout", "micro_batch_size")}
    asked_ranks = question.layout.context_all_to_all or 1
    hides_exchange = bases["expert_overlap"].astype(bool) if "expert_overlap" in bases else NOT_HIDDEN
    is_repeated = _repeated(modes, full_layers, is_whole, choices, longest)
    if hides_exchange is not NOT_HIDDEN and is_searched:
        # Layers that are computed again as one have no parts to pair.
        is_repeated = is_repeated | (hides_exchange & (modes == FULL))
    return grid_of(
        Candidates(
            **degrees,
            # Stage 0 shards nothing, so that a group means nothing to it.
            shard_group=np.where(zero_stage == 0, bases["data_parallel"], bases["shard_group"]),
            secondary_shard_group=_secondary_groups(question, bases, zero_stage),
            sequence_parallel=bases["sequence_parallel"].astype(bool),
            context_all_to_all=bases[ALL_TO_ALL] if ALL_TO_ALL in bases else np.array([asked_ranks]),
            expert_overlap=hides_exchange,
            zero_stage=zero_stage,
            offload=offload,
            activation_offload=activation_offload.astype(bool),
            recompute=modes,
            module_set=_along_recompute(*asked_modules, *choices.module_sets) if choices.module_sets else ASKED_MODULES,
            full_layers=full_layers,
            fused_cross_entropy=np.array(choices.fused_cross_entropy, dtype=bool).reshape(-1, 1, 1, 1),
        ),
        np.asarray(~is_repeated),
    )


def _along_recompute(*values: int) -> IntArray:
    """Return one value for each choice of recompute, along its axis."""
    return np.array(values, dtype=np.int64).reshape(-1, 1, 1)


def _secondary_groups(question: TrainingQuestion, bases: Mapping[str, IntArray], zero_stage: IntArray) -> IntArray:
    """Return how many ranks share a second copy of the weights: what is asked for, or else none below ZeRO stage 3."""
    asked = question.layout.secondary_shard_group
    if asked is not None:
        return np.array([asked])
    if SECONDARY not in bases:
        return np.ones(1, dtype=np.int64)
    return np.where(zero_stage == HIGHEST_ZERO_STAGE, bases[SECONDARY], 1)


def _full_layers(question: TrainingQuestion, job: Job, choices: Choices, pipeline_parallel: IntArray) -> IntArray:
    """Return how many layers of a stage each choice of recompute covers, [choice, 1, base]."""
    shares = np.array([share for _, share in choices.recompute]).reshape(-1, 1, 1)
    fixed = question.recompute.full_layers if question.recompute else None
    if fixed is not None:
        return np.full_like(shares, fixed, dtype=np.int64)
    if job.recompute_every is not None:
        return (job.model.num_layers // pipeline_parallel // job.recompute_every).reshape(1, 1, -1)
    layers = np.maximum(job.model.num_layers // pipeline_parallel, 1)
    partial = np.maximum(np.floor(layers * shares), 1).astype(np.int64)
    of_shares = np.where(shares < 1.0, partial, ALL_LAYERS)
    further = _along_recompute(*choices.full_layers, *(ALL_LAYERS for _ in choices.module_sets))
    if not further.size:
        return of_shares
    return np.concatenate([of_shares, np.broadcast_to(further, (further.size, 1, layers.size))])


def stage_layers(bases: Mapping[str, IntArray], job: Job) -> IntArray:
    """Return how many layers the longest stage of each base has; one fewer is not all of them."""
    return longest_stages(bases["pipeline_parallel"], bases["virtual_pipeline"], bases["pipeline_layout"], job)


def _repeated(
    modes: IntArray, full_layers: IntArray, is_whole: BoolArray, choices: Choices, layers: IntArray
) -> BoolArray:
    """Return where a choice of recompute is the same as another, in stages with few layers.

    `is_whole` says where a limited number of layers is all of every stage's; the longest stage has `layers`.
    """
    repeated: BoolArray = (full_layers != ALL_LAYERS) & is_whole
    shares = len(choices.recompute)
    if shares > 1:
        # Shares of one mode rise, so that a number of layers that was there already is the one before.
        later, before = slice(1, shares), slice(shares - 1)
        repeated[later] |= (modes[later] == modes[before]) & (full_layers[later] == full_layers[before])
    if choices.full_layers or choices.module_sets:
        repeated[shares:] |= full_layers[shares:] >= layers
    return repeated


def _axes(question: TrainingQuestion, job: Job, gpus: IntArray) -> Axes:
    mesh, repeats_whole_group = _meshes(question, job, gpus)
    return Axes(
        mesh=mesh,
        repeats_whole_group=repeats_whole_group,
        micro_batch_sizes=(question.micro_batch_size,) if question.micro_batch_size else _micro_batches(question),
    )


def offload_choices(question: TrainingQuestion, can: Capabilities) -> tuple[tuple[int, bool], ...]:
    """Return (what of the states, whether activations) to put on the host: first what is asked for, then the rest.

    What was refused is never tried.
    """
    asked = question.layout.offload
    wanted = (asked or "none", bool(question.activation_offload))
    states = can.offload if asked is None else (asked,)
    may_move = question.activation_offload is None and can.activation_offload != "none"
    moves = (False, True) if may_move else (wanted[1],)
    others = [(name, moved) for name in states for moved in moves if (name, moved) != wanted]
    return tuple((OFFLOADS.index(name), moved) for name, moved in (wanted, *others))


def _micro_batches(question: TrainingQuestion) -> tuple[int, ...]:
    return tuple(size for size in MICRO_BATCH_SIZES if question.global_batch_size % size == 0)


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
    if request.secondary_shard_group not in (None, 1):
        return tuple(stage for stage in able if stage == HIGHEST_ZERO_STAGE)
    return able if request.shard_group is None else tuple(stage for stage in able if stage > 0)


def _meshes(question: TrainingQuestion, job: Job, gpus: IntArray) -> tuple[dict[str, IntArray], BoolArray]:
    """Return mesh shapes, and which repeat another with a smaller shard group."""
    degrees = _degrees(question, job, gpus)
    degrees = with_pipeline_layouts(only(degrees, are_chunks_finer(degrees, question, job)), job, only_first=True)
    mesh = over_expert_degrees(degrees, question, job)
    groups = _shard_groups(question, job, mesh)
    # A group that is all replicas after all stands first already.
    is_new = groups != mesh["data_parallel"]
    is_new[0] = True
    number, index = np.nonzero(is_new)
    group, is_smaller = groups[is_new], number > 0
    asked = question.layout.sequence_parallel
    choices = tuple(job.profile.can.sequence_parallel) if asked is None else (asked,)
    is_divided = mesh["tensor_parallel"][index] > 1
    # Without tensor parallelism there is nothing to divide over, whatever is chosen.
    place = np.flatnonzero(np.stack([is_divided | (number == 0) for number in range(len(choices))], axis=1))
    of_mesh, choice = np.divmod(place, len(choices))
    degrees = {name: values[index][of_mesh] for name, values in mesh.items()}
    # Who fixes it means tensor-parallel ranks beside it: the rules leave out what has none.
    degrees["sequence_parallel"] = np.array(choices, dtype=np.int64)[choice] * (is_divided[of_mesh] | bool(asked))
    return {**degrees, "shard_group": group[of_mesh]}, is_smaller[of_mesh]


def _degrees(question: TrainingQuestion, job: Job, gpus: IntArray) -> dict[str, IntArray]:
    """Return tensor, pipeline, virtual and context degrees, data parallelism making up the rest."""
    request, can, model = question.layout, job.profile.can, job.model
    node = question.hardware.gpus_per_node
    most_context = max(question.sequence_length // SHORTEST_CONTEXT_SHARE, 1)
    contexts = [degree for degree in CONTEXT_DEGREES if degree <= most_context]
    tensor = _divisors(gpus, _choices(request.tensor_parallel, can.tensor_parallel, range(1, node + 1)))
    pipeline = _divisors(
        gpus, _choices(request.pipeline_parallel, can.pipeline_parallel, range(1, model.num_layers + 1))
    )
    context = _divisors(gpus, _choices(request.context_parallel, can.context_parallel, contexts))
    virtual = _choices(request.virtual_pipeline, can.virtual_pipeline, VIRTUAL_STAGES)
    axes = [np.array(values, dtype=np.int64) for values in (gpus, tensor, pipeline, context, virtual)]
    lengths = [values.size for values in axes]
    places = np.unravel_index(np.arange(math.prod(lengths)), lengths)
    total, tensors, pipelines, contexts_of, virtuals = (
        values[place] for values, place in zip(axes, places, strict=True)
    )
    model_ranks = tensors * pipelines * contexts_of
    data = total // model_ranks
    exists = (
        (data * model_ranks == total)
        & (data > 0)
        & ((virtuals == 1) | (pipelines > 1) | (request.virtual_pipeline is not None))
    )
    if request.data_parallel is not None:
        exists &= data == request.data_parallel
    names = ("data_parallel", "tensor_parallel", "pipeline_parallel", "context_parallel", "virtual_pipeline")
    kept = (values[exists] for values in (data, tensors, pipelines, contexts_of, virtuals))
    return dict(zip(names, kept, strict=True))


def _divisors(gpus: IntArray, degrees: list[int]) -> list[int]:
    """Return the degrees that divide some number of GPUs."""
    every = np.array(degrees, dtype=np.int64)
    divisors: list[int] = every[(gpus[:, None] % every == 0).any(axis=0)].tolist()
    return divisors


def _shard_groups(question: TrainingQuestion, job: Job, mesh: dict[str, IntArray]) -> IntArray:
    """Return shard groups to try, [choice, mesh]: all replicas, then those in a node, where a mesh has both.

    Where a stack divides no parameters, they seldom win; what can is found beyond the usual layouts.
    """
    data = mesh["data_parallel"]
    if question.layout.shard_group is not None:
        return np.full((1, data.size), question.layout.shard_group)
    if not job.profile.can.shard_group or job.profile.sharding.parameters_from > HIGHEST_ZERO_STAGE:
        return data[None, :]
    ranks = mesh["tensor_parallel"] * mesh["context_parallel"]
    node = question.hardware.gpus_per_node
    in_node = np.maximum(node // ranks, 1)
    return np.stack([data, np.where(data % in_node == 0, in_node, data)])


def _choices(fixed: int | None, able: bool, values: object) -> list[int]:
    if fixed is not None:
        return [fixed]
    return list(values) if able else [1]  # type: ignore[call-overload]
