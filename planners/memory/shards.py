"""How many elements of its weights the fullest rank holds, for whole arrays of layouts.

What a rank holds is `planners/sharding`'s to say, stack by stack. Here each
distinct way of dividing is asked once for each part of the model, and the answers
are spread over all layouts that divide so.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.architecture import Split, Weight
from plimsoll.planners.ground.errors import ImpossibleLayout
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.jobs.job import BlockWeights, Job
from plimsoll.planners.jobs.optimizers import LEAST_PAGED_ELEMENTS, STEP_COUNTER_BYTES, OptimizerKind
from plimsoll.planners.layouts.candidates import BoolArray, Candidates, FloatArray, IntArray
from plimsoll.planners.layouts.distinct import distinct
from plimsoll.planners.layouts.experts import expert_tensor_ranks
from plimsoll.planners.sharding import FirstRank, Mesh, ShardingPolicy, ShardLayout, first_rank
from plimsoll.planners.sharding.groups import cut_of, group_of, mesh_of
from plimsoll.planners.sharding.weights import LocalWeight, local_weight

# Answers kept between the chunks of a search and the searches of a process: a few parts times some thousand ways.
MOST_KEPT_ANSWERS = 1 << 16
# The same answers, side by side for the ways of a whole search: seldom more than a hundred at a time.
MOST_KEPT_COLUMNS = 1 << 12
# The lists of ways of a search's chunks, a few dozen each.
MOST_KEPT_LISTS = 1 << 10
# In place of a number of shard ranks: the state is not divided, not even over ranks that experts leave to one another.
WHOLE = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Way:
    """One way to divide weights: degrees, and the stack's policy. There is one of each, compared by identity."""

    layout: ShardLayout
    policy: ShardingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Divisions:
    """The distinct ways in which many layouts divide weights.

    `inverse` leads from a layout to its way, in the shape to which what decides it broadcasts.
    """

    ways: tuple[Way, ...]
    inverse: IntArray

    def spread(self, quantity: Callable[..., float], *of: Hashable) -> FloatArray:
        """Return a quantity of something for each layout, asked once for each way, in the layouts' shape.

        `quantity` takes a way after what it is of, and its answers are kept: it is a
        function of a module and nothing else, and what it is of is compared by identity
        or small. It is 0 where the stack does not divide weights so: grids have layouts
        that no rule allows beside those that are looked at.
        """
        return _column(quantity, of, self.ways)[self.inverse]


@functools.lru_cache(maxsize=MOST_KEPT_COLUMNS)
def _column(quantity: Callable[..., float], of: tuple[Hashable, ...], ways: tuple[Way, ...]) -> FloatArray:
    return np.array([_or_nothing(quantity, of, way) for way in ways], dtype=np.float64)


def _or_nothing(quantity: Callable[..., float], of: tuple[Hashable, ...], way: Way) -> float:
    try:
        return quantity(*of, way)
    except ImpossibleLayout:
        return 0.0


def divisions(layouts: Candidates, shard_ranks: IntArray, job: Job) -> Divisions:
    """Return how layouts divide a state over so many shard ranks, `WHOLE` where the stack does not divide it."""
    policies, of_stage = _policies(job.profile.placement.policies)
    policy = of_stage[layouts.zero_stage]
    # An expert is cut over all tensor-parallel ranks or over none.
    cuts_experts = (expert_tensor_ranks(layouts, job) == layouts.tensor_parallel).astype(np.int64)
    # Degrees stay below 2^20, so that a way is one integer of 63 bits at most.
    columns = (policy, layouts.tensor_parallel, shard_ranks, layouts.expert_parallel, cuts_experts)
    spans = [int(column.max(initial=0)) + 1 for column in columns]
    every = np.ravel_multi_index(columns, spans)
    keys, inverse = distinct(every)
    return Divisions(ways=_ways(policies, tuple(spans), tuple(keys.tolist())), inverse=inverse)


@functools.lru_cache(maxsize=MOST_KEPT_LISTS)
def _ways(policies: tuple[ShardingPolicy, ...], spans: tuple[int, ...], keys: tuple[int, ...]) -> tuple[Way, ...]:
    """Return the ways that `divisions` numbers by policy and degrees, which are below `spans`."""
    every = zip(*(column.tolist() for column in np.unravel_index(keys, spans)), strict=True)
    return tuple(_way(policies[number], *degrees) for number, *degrees in every)


def tensor_divisions(layouts: Candidates, job: Job) -> Divisions:
    """Return how layouts divide weights over tensor-parallel ranks, whatever becomes of experts and of shards."""
    policies, of_stage = _policies(job.profile.placement.policies)
    every = layouts.tensor_parallel
    if len(policies) > 1:
        every = every * len(policies) + of_stage[layouts.zero_stage]
    keys, inverse = distinct(every)
    ways = (divmod(key, len(policies)) for key in keys.tolist())
    return Divisions(ways=tuple(_way(policies[number], degree, 1, 1, True) for degree, number in ways), inverse=inverse)


@functools.cache
def _policies(of_stages: tuple[ShardingPolicy, ...]) -> tuple[tuple[ShardingPolicy, ...], IntArray]:
    """Return a stack's different policies, and which of them holds at each ZeRO stage."""
    policies = tuple(dict.fromkeys(of_stages))
    return policies, np.array([policies.index(policy) for policy in of_stages])


@functools.lru_cache(maxsize=MOST_KEPT_ANSWERS)
def _way(
    policy: ShardingPolicy, tensor_parallel: int, shard_ranks: int, expert_parallel: int, cuts_experts: bool
) -> Way:
    # As many replicas as experts' ranks leave room for experts on more ranks than share a state.
    layout = ShardLayout(
        tensor_parallel=tensor_parallel,
        shard_ranks=max(shard_ranks, 1),
        replicas=expert_parallel,
        expert_parallel=expert_parallel,
        expert_tensor_parallel=tensor_parallel if cuts_experts else 1,
        is_divided=shard_ranks != WHOLE,
    )
    return Way(layout=layout, policy=policy)


def are_divisible(part: BlockWeights, by: Divisions) -> BoolArray:
    """Return where the stack would divide the weights at all."""
    return by.spread(_is_divisible, part).astype(bool)


def have_unequal_parts(parts: tuple[BlockWeights, ...], by: Divisions) -> BoolArray:
    """Return where tensor parallelism cuts matrices unevenly; a vocabulary may be padded or cut in ceilings."""
    return by.spread(_have_unequal_parts, parts).astype(bool)


def _have_unequal_parts(parts: tuple[BlockWeights, ...], way: Way) -> bool:
    return any(not _is_divisible(part, way) or uneven_matrices(part, way) for part in parts)


@functools.lru_cache(maxsize=MOST_KEPT_ANSWERS)
def uneven_matrices(part: BlockWeights, way: Way) -> tuple[Weight, ...]:
    """Return the matrices that tensor parallelism cuts into unequal parts, or not at all."""
    split = (weight for weight in part.block.weights if weight.split in (Split.COLUMN, Split.ROW))
    return tuple(weight for weight in split if not _is_cut_evenly(weight, way))


def _is_cut_evenly(weight: Weight, way: Way) -> bool:
    try:
        held, _ = local(weight, way)
    except ImpossibleLayout:
        return False
    return held.stored_elements * way.layout.tensor_parallel == weight.elements


def split_elements(part: BlockWeights, by: Divisions) -> FloatArray:
    """Return the elements that learn on a rank after tensor and expert parallelism, before ZeRO or FSDP."""
    return by.spread(_held_whole, part)


def frozen_elements(part: BlockWeights, by: Divisions) -> FloatArray:
    """Return the elements on a rank that only stand by, before ZeRO or FSDP."""
    return by.spread(_standing_by_whole, part)


def shard_elements(part: BlockWeights, by: Divisions) -> FloatArray:
    """Return the elements that learn and are stored on a rank, padding included."""
    return by.spread(_held_stored, part)


def padded_elements(part: BlockWeights, by: Divisions) -> FloatArray:
    """Return the elements of a gathered or to-be-reduced buffer: all ranks' stored parts."""
    return by.spread(_held_gathered, part)


def moment_bytes(part: BlockWeights, by: Divisions, optimizer: OptimizerKind, element_bytes: float) -> FloatArray:
    """Return the optimizer's moments on a rank: moments of each element, or rows and columns.

    One fp32 step counter a tensor is added where the optimizer has states and
    tensors keep their dimensions.
    """
    return by.spread(_moment_bytes, part, ByIdentity(optimizer), element_bytes)


def small_moment_bytes(part: BlockWeights, by: Divisions, optimizer: OptimizerKind, element_bytes: float) -> FloatArray:
    """Return what of the moments on a rank is of tensors too small to be paged."""
    return by.spread(_small_moment_bytes, part, ByIdentity(optimizer), element_bytes)


def local(weight: Weight, way: Way) -> tuple[LocalWeight, Mesh]:
    """Return what of a weight stands on rank 0 before ZeRO or FSDP cuts it, and how it is divided."""
    mesh = mesh_of(group_of(weight), way.layout, way.policy)
    return local_weight(weight, mesh, way.policy), mesh


def matrix_elements(weight: Weight, way: Way) -> int:
    """Return the elements of one matrix on a rank, one expert's where there are several."""
    held, mesh = local(weight, way)
    return held.stored_elements * mesh.expert // weight.experts


@functools.lru_cache(maxsize=MOST_KEPT_ANSWERS)
def _is_divisible(part: BlockWeights, way: Way) -> bool:
    try:
        # The block's own weights all learn or all stand by, and adapters learn beside them; all are asked for again.
        if part.frozen:
            _standing_by(part, way)
        _held(part, way)
    except ImpossibleLayout:
        return False
    return True


@functools.lru_cache(maxsize=MOST_KEPT_ANSWERS)
def _held(part: BlockWeights, way: Way) -> FirstRank:
    return first_rank(part.trainable, way.layout, way.policy)


@functools.lru_cache(maxsize=MOST_KEPT_ANSWERS)
def _standing_by(part: BlockWeights, way: Way) -> FirstRank:
    return first_rank(part.frozen, way.layout, way.policy)


def _held_whole(part: BlockWeights, way: Way) -> float:
    return _held(part, way).whole


def _held_stored(part: BlockWeights, way: Way) -> float:
    return _held(part, way).stored


def _held_gathered(part: BlockWeights, way: Way) -> float:
    return _held(part, way).gathered


def _standing_by_whole(part: BlockWeights, way: Way) -> float:
    return _standing_by(part, way).whole


@functools.lru_cache(maxsize=MOST_KEPT_ANSWERS)
def _moment_bytes(part: BlockWeights, same: ByIdentity[OptimizerKind], element_bytes: float, way: Way) -> float:
    optimizer = same.value
    keeps_dimensions = way.policy.cut.keeps_dimensions
    values = 0.0
    kinds = {optimizer.moments_of(weight) for weight in part.trainable}
    for moments in kinds:
        alike = [weight for weight in part.trainable if optimizer.moments_of(weight) == moments]
        held = _held(part, way) if len(kinds) == 1 else first_rank(alike, way.layout, way.policy)
        values += moments * (held.elements if keeps_dimensions else held.stored)
    values += sum(_rows_and_columns(weight, way) for weight in part.trainable if optimizer.is_factored(weight))
    if keeps_dimensions and (optimizer.moments or optimizer.factored):
        tensors = sum(local(weight, way)[0].tensors for weight in part.trainable)
        return values * element_bytes + tensors * STEP_COUNTER_BYTES
    return values * element_bytes


@functools.lru_cache(maxsize=MOST_KEPT_ANSWERS)
def _small_moment_bytes(part: BlockWeights, same: ByIdentity[OptimizerKind], element_bytes: float, way: Way) -> float:
    small = 0.0
    for weight in part.trainable:
        held, mesh = local(weight, way)
        each = math.ceil(held.tensor.elements / mesh.shard)
        small += same.value.moments_of(weight) * held.tensors * each if each < LEAST_PAGED_ELEMENTS else 0
    return small * element_bytes


def _rows_and_columns(weight: Weight, way: Way) -> float:
    """Return the elements of factored second moments: one row and one column a matrix, of the last two dimensions."""
    held, mesh = local(weight, way)
    if not way.policy.cut.keeps_dimensions:
        return held.tensors * _factors(held.tensor.shape) / mesh.shard
    pieces = next(cut_of(group_of(weight), mesh, way.policy).pieces([held.tensor], mesh.shard))
    return float(held.tensors * _factors(pieces[0].shape))


def _factors(shape: tuple[int, ...]) -> int:
    return math.prod(shape[:-1]) + math.prod(shape[:-2]) * shape[-1]
