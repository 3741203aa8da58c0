"""Parameters that are dealt whole over the ranks which would otherwise update all of them alike.

They are sorted by size and dealt to and fro: of four ranks the first gets the smallest, the eighth and the ninth. What
one rank has depends on all that its stage has, so that stages are asked for, not layers.

Source: NVIDIA/Megatron-LM core_v0.16.1, core/optimizer/layer_wise_optimizer.py, `shard_params`, `allgather_params`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.architecture import Weight
from plimsoll.planners.ground.errors import ImpossibleLayout
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.jobs.job import BlockWeights, Job
from plimsoll.planners.jobs.optimizers import OptimizerKind
from plimsoll.planners.layouts.candidates import FloatArray, IntArray
from plimsoll.planners.layouts.distinct import distinct
from plimsoll.planners.layouts.stages import Pipeline, StageRows
from plimsoll.planners.memory.shards import MOST_KEPT_ANSWERS, Divisions, Way, local
from plimsoll.planners.memory.stage_parts import Counts, counts_of_stages, parts_of
from plimsoll.planners.sharding.parameters import joined
from plimsoll.planners.sharding.weights import is_expert

# What a parameter has of a quantity, by its weights and their shapes on a rank, whole.
Shapes = Sequence[tuple[Weight, tuple[int, ...]]]
Quantity = Callable[[Shapes], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LikeParameters:
    """Parameters of one size on a stage's rank, before they are dealt over so many `ranks`."""

    shapes: tuple[tuple[Weight, tuple[int, ...]], ...]
    count: int
    ranks: int
    elements: int
    is_expert: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DealtStates:
    """What dealing leaves of a stage's states on the rank with the most, one entry a stage and layout.

    `gathered_elements` are live at most as the updated parameters are gathered: all of them, and the rank's own once
    more as they are sent; those of experts follow the others.
    """

    state_bytes: FloatArray
    gathered_elements: FloatArray


def dealt_states(rows: StageRows, by: Divisions, job: Job, moment_bytes: float) -> DealtStates:
    """Return the states on the fullest rank of each stage where they are dealt out as `by` divides them."""
    measured = _of_stages(rows, by, job, _fullest, ByIdentity(job.optimizer), float(job.states.master), moment_bytes)
    return DealtStates(state_bytes=measured[..., 0], gathered_elements=measured[..., 1])


def busiest_rank(rows: StageRows, by: Divisions, job: Job, quantity: Quantity) -> FloatArray:
    """Return a quantity of the parameters that the busiest rank of each stage updates."""
    return _of_stages(rows, by, job, _busiest, quantity)[..., 0]


def _of_stages(
    rows: StageRows, by: Divisions, job: Job, measure: Callable[..., tuple[float, ...]], *asked: object
) -> FloatArray:
    """Return what `measure` says of each stage, asked once for each way to hold and divide; its values stand last."""
    held: dict[Counts, int] = {}

    def places(pipeline: Pipeline) -> IntArray:
        return np.array([held.setdefault(counts, len(held)) for counts in counts_of_stages(pipeline)])

    of_stages = rows.pipelines.of_numbers(places, axes=rows.stage.ndim - 1)
    keys, inverse = distinct(of_stages * len(by.ways) + by.inverse)
    parts, every = parts_of(job), tuple(held)
    found = [measure(*asked, parts, every[key // len(by.ways)], by.ways[key % len(by.ways)]) for key in keys.tolist()]
    return np.array(found)[inverse]


@functools.lru_cache(maxsize=MOST_KEPT_ANSWERS)
def _fullest(
    same: ByIdentity[OptimizerKind],
    master_bytes: float,
    moment_bytes: float,
    parts: tuple[BlockWeights, ...],
    counts: Counts,
    way: Way,
) -> tuple[float, float]:
    optimizer = same.value

    def state_bytes(shapes: Shapes) -> float:
        return sum(
            float(np.prod(shape)) * (master_bytes + optimizer.moments_of(weight) * moment_bytes)
            for weight, shape in shapes
        )

    try:
        held = _held(parts, counts, way)
    except ImpossibleLayout:
        return 0.0, 0.0
    on_ranks = _on_ranks(held, way, state_bytes)
    fullest = int(on_ranks.argmax())
    gathered = [0.0]
    for of_experts in (False, True):
        own = [like for like in held if like.is_expert is of_experts and like.ranks > 1]
        if own:
            total = sum(like.count * like.elements for like in own)
            gathered.append(total + float(_on_ranks(own, way, _elements)[fullest]))
    return float(on_ranks[fullest]), max(gathered)


@functools.lru_cache(maxsize=MOST_KEPT_ANSWERS)
def _busiest(quantity: Quantity, parts: tuple[BlockWeights, ...], counts: Counts, way: Way) -> tuple[float]:
    try:
        return (float(_on_ranks(_held(parts, counts, way), way, quantity).max()),)
    except ImpossibleLayout:
        return (0.0,)


def _held(parts: tuple[BlockWeights, ...], counts: Counts, way: Way) -> list[LikeParameters]:
    """Return all that a rank of the stage would update alone, the smallest first."""
    found = [
        like for part, count in zip(parts, counts, strict=True) if count for like in _parameters_of(part, count, way)
    ]
    return sorted(found, key=lambda like: like.elements)


def _parameters_of(part: BlockWeights, count: int, way: Way) -> Sequence[LikeParameters]:
    """Return the parameters of so many of a part."""
    learning = (weight for weight in part.trainable if not weight.is_buffer)
    return [_like(weights, count, way) for weights in joined(learning)]


def _like(weights: tuple[Weight, ...], count: int, way: Way) -> LikeParameters:
    held = [(weight, *local(weight, way)) for weight in weights]
    _, one, mesh = held[0]
    # Without ranks that have the same dense parameters none are dealt, experts included.
    ranks = mesh.shard if way.layout.shard_ranks > 1 else 1
    return LikeParameters(
        shapes=tuple((weight, on_rank.tensor.shape) for weight, on_rank, _ in held),
        count=count * one.tensors,
        ranks=ranks,
        elements=sum(on_rank.tensor.stored_elements for _, on_rank, _ in held),
        is_expert=is_expert(weights[0]),
    )


def _elements(shapes: Shapes) -> float:
    return float(sum(np.prod(shape) for _, shape in shapes))


def _on_ranks(held: Sequence[LikeParameters], way: Way, quantity: Quantity) -> FloatArray:
    """Return what each of a stage's ranks has of a quantity.

    Ranks count the tensor axis fastest; for experts the axes that divide them are counted before those over which they
    are dealt.
    """
    layout = way.layout
    own = layout.expert_parallel * (layout.expert_tensor_parallel or layout.tensor_parallel)
    ranks = np.arange(layout.tensor_parallel * layout.shard_ranks)
    total = np.zeros(len(ranks))
    for of_experts, index in ((False, ranks // layout.tensor_parallel), (True, ranks // own)):
        amounts = _dealt([like for like in held if like.is_expert is of_experts], quantity)
        total += amounts[index % len(amounts)]
    return total


def _dealt(sorted_parameters: Sequence[LikeParameters], quantity: Quantity) -> FloatArray:
    """Return what each rank gets; where nothing is dealt every rank has all."""
    ranks = max((like.ranks for like in sorted_parameters), default=1)
    amounts = np.zeros(ranks)
    position = 0
    for like in sorted_parameters:
        amounts += quantity(like.shapes) * _times_dealt(position, like.count, ranks)
        position += like.count
    return amounts


def _times_dealt(first: int, count: int, ranks: int) -> IntArray:
    """Return how many of `count` parameters each rank gets, the first of which is dealt as number `first`."""
    to_and_fro = np.concatenate([np.arange(ranks), np.arange(ranks)[::-1]])
    rounds, rest = divmod(count, 2 * ranks)
    places = (first + np.arange(rest)) % (2 * ranks)
    return 2 * rounds + np.bincount(to_and_fro[places], minlength=ranks)
