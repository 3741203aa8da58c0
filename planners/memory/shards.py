"""How many elements of its weights a rank holds, for whole arrays of layouts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planners.architecture import Weight
from planners.identity import Same
from planners.layout.candidates import FloatArray, IntArray
from planners.memory.optimizers import STEP_COUNTER_BYTES, OptimizerKind

# Weights of a few parts of some tens of models, each cut in a dozen ways.
MOST_KEPT_CUTS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Divisions:
    """The distinct (tensor parallel, shard ranks) pairs among many layouts.

    A table has one entry a pair; `degree` says which of the tensor-parallel
    `degrees` it has, and `inverse` spreads it over the layouts, in their shape.
    Experts are divided over `expert_parallel` ranks first and sharded over the fewer
    ranks of `experts`. `cuts_whole_experts` marks stacks that hold a layer's experts as one
    tensor and cut it between experts (FSDP2 cuts dimension 0).
    """

    degrees: tuple[int, ...]
    degree: IntArray
    tensor_parallel: IntArray
    shard_ranks: IntArray
    inverse: IntArray
    experts: Divisions | None = None
    expert_parallel: IntArray | None = None
    cuts_whole_experts: bool = False


def divisions(
    tensor_parallel: IntArray,
    shard_ranks: IntArray,
    expert_parallel: IntArray | None = None,
    *,
    cuts_whole_experts: bool = False,
) -> Divisions:
    """Return the distinct pairs; degrees stay below 2^31, so that a pair is one integer."""
    every = tensor_parallel << 31 | shard_ranks
    pairs, inverse = np.unique(every, return_inverse=True)
    experts = None
    if expert_parallel is not None and (expert_parallel > 1).any():
        fewer = np.maximum(shard_ranks // expert_parallel, 1)
        experts = divisions(tensor_parallel, fewer, cuts_whole_experts=cuts_whole_experts)
    tensor = pairs >> 31
    is_next = np.diff(tensor, prepend=0) > 0
    return Divisions(
        degrees=tuple(tensor[is_next].tolist()),
        degree=np.cumsum(is_next) - 1,
        tensor_parallel=tensor,
        shard_ranks=pairs & (2**31 - 1),
        inverse=inverse.reshape(every.shape),
        experts=experts,
        expert_parallel=expert_parallel,
        cuts_whole_experts=cuts_whole_experts,
    )


def over_experts(
    quantity: Callable[[Sequence[Weight], Divisions], FloatArray], weights: Sequence[Weight], by: Divisions
) -> FloatArray:
    """Return a quantity of dense weights and of experts, each divided over its own ranks."""
    if by.experts is None or by.expert_parallel is None:
        return quantity(weights, by)
    dense = [weight for weight in weights if weight.experts == 1]
    experts = [weight for weight in weights if weight.experts > 1]
    total: FloatArray = quantity(dense, by) + quantity(experts, by.experts) / by.expert_parallel
    return total


def split_elements(weights: Sequence[Weight], by: Divisions) -> FloatArray:
    """Return each rank's elements after the tensor split alone."""
    return over_experts(lambda some, cut: _per_tensor_degree(some, cut)[cut.inverse], weights, by)


def shard_elements(weights: Sequence[Weight], by: Divisions, *, flat: bool) -> FloatArray:
    """Return the elements a rank stores after the tensor split and ZeRO's.

    A flat cut rounds the sum up once; a cut of each tensor's first dimension
    rounds every tensor, and a rank whose part is short or empty stores as much.
    """
    return over_experts(
        lambda some, cut: _shard_sum(some, cut, flat=flat, factor=[1.0] * len(some))[cut.inverse], weights, by
    )


def padded_elements(weights: Sequence[Weight], by: Divisions, *, flat: bool) -> FloatArray:
    """Return the elements of a gathered or to-be-reduced buffer: all ranks' stored parts."""
    if flat:
        return split_elements(weights, by)
    return over_experts(
        lambda some, cut: (_shard_sum(some, cut, flat=False, factor=[1.0] * len(some)) * cut.shard_ranks)[cut.inverse],
        weights,
        by,
    )


def moment_bytes(
    weights: Sequence[Weight], by: Divisions, *, flat: bool, optimizer: OptimizerKind, element_bytes: float
) -> FloatArray:
    """Return the optimizer's moments on a rank: moments of each element, or rows and columns.

    One fp32 step counter a tensor is added where the optimizer has states and
    tensors keep their identity.
    """
    return over_experts(
        lambda some, cut: _moment_bytes(some, cut, flat=flat, optimizer=optimizer, element_bytes=element_bytes),
        weights,
        by,
    )


def _moment_bytes(
    weights: Sequence[Weight], by: Divisions, *, flat: bool, optimizer: OptimizerKind, element_bytes: float
) -> FloatArray:
    factor = [float(optimizer.moments_of(weight)) for weight in weights]
    moments = _shard_sum(weights, by, flat=flat, factor=factor) * element_bytes
    if not flat and (optimizer.moments or optimizer.factored):
        moments = moments + STEP_COUNTER_BYTES * len(weights)
    if optimizer.factored:
        moments = moments + element_bytes * _rows_and_columns(weights, by, flat=flat, optimizer=optimizer)
    return moments[by.inverse]


def _per_tensor_degree(weights: Sequence[Weight], by: Divisions) -> FloatArray:
    cuts = _cuts(Same(weights), by.degrees, cuts_whole_experts=by.cuts_whole_experts)
    total: FloatArray = cuts.elements.sum(axis=0)[by.degree]
    return total


def _shard_sum(weights: Sequence[Weight], by: Divisions, *, flat: bool, factor: Sequence[float]) -> FloatArray:
    cuts = _cuts(Same(weights), by.degrees, cuts_whole_experts=by.cuts_whole_experts)
    factors = np.array(factor).reshape(-1, 1)
    total: FloatArray
    if flat:
        total = np.ceil((cuts.elements * factors).sum(axis=0)[by.degree] / by.shard_ranks)
    else:
        rows = -(-cuts.lengths[:, by.degree] // by.shard_ranks)
        total = (rows * (cuts.elements / cuts.lengths * factors)[:, by.degree]).sum(axis=0)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cuts:
    """[weight, degree]: elements on a tensor-parallel rank, and how many rows, or whole experts, are dealt out."""

    elements: FloatArray
    lengths: IntArray


@functools.lru_cache(maxsize=MOST_KEPT_CUTS)
def _cuts(weights: Same[Sequence[Weight]], degrees: tuple[int, ...], *, cuts_whole_experts: bool) -> _Cuts:
    shape = (len(weights.value), len(degrees))
    elements, lengths = np.zeros(shape), np.ones(shape, dtype=np.int64)
    for row, weight in enumerate(weights.value):
        for column, degree in enumerate(degrees):
            local = weight.local_shape(degree)
            elements[row, column] = math.prod(local) * weight.tensors
            lengths[row, column] = weight.experts if cuts_whole_experts and weight.experts > 1 else local[0]
    return _Cuts(elements=elements, lengths=lengths)


def _rows_and_columns(weights: Sequence[Weight], by: Divisions, *, flat: bool, optimizer: OptimizerKind) -> FloatArray:
    """Return the elements of factored second moments: one row and one column a matrix."""
    total = np.zeros(by.shard_ranks.size)
    for position, (degree, ranks) in enumerate(zip(by.tensor_parallel.tolist(), by.shard_ranks.tolist(), strict=True)):
        for weight in weights:
            if optimizer.is_factored(weight):
                shape = weight.local_shape(degree)
                rows = shape[0] if flat else -(-shape[0] // ranks)
                columns = math.prod(shape[1:])
                total[position] += weight.experts * (rows + columns) / (ranks if flat else 1)
    return total
