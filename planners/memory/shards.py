"""How many elements of its weights a rank holds, for whole arrays of layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planners.architecture import Weight
from planners.layout.candidates import FloatArray, IntArray
from planners.memory.optimizers import STEP_COUNTER_BYTES, OptimizerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Divisions:
    """The distinct (tensor parallel, shard ranks) pairs among many layouts.

    A table has one entry a pair; `inverse` spreads it over the layouts. Experts are
    divided over `expert_parallel` ranks first and sharded over the fewer ranks of
    `experts`. `cuts_whole_experts` marks stacks that hold a layer's experts as one
    tensor and cut it between experts (FSDP2 cuts dimension 0).
    """

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
    expert_tensor_parallel: IntArray | None = None,
    cuts_whole_experts: bool = False,
) -> Divisions:
    """Return the distinct pairs; degrees stay below 2^31, so that a pair is one integer.

    `expert_tensor_parallel` is over how many tensor-parallel ranks each expert is cut; None means all of them.
    """
    pairs, inverse = np.unique(tensor_parallel << 31 | shard_ranks, return_inverse=True)
    experts = None
    if expert_parallel is not None and (expert_parallel > 1).any():
        cut = tensor_parallel if expert_tensor_parallel is None else expert_tensor_parallel
        # Tensor ranks that cut no expert are more ranks to hold experts, or to share the states of one.
        sharers = np.where(shard_ranks > 1, shard_ranks * (tensor_parallel // cut), 1)
        fewer = np.maximum(sharers // expert_parallel, 1)
        experts = divisions(cut, fewer, cuts_whole_experts=cuts_whole_experts)
    return Divisions(
        tensor_parallel=pairs >> 31,
        shard_ranks=pairs & (2**31 - 1),
        inverse=inverse,
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
    table = {
        degree: float(sum(weight.local_elements(degree) for weight in weights))
        for degree in np.unique(by.tensor_parallel).tolist()
    }
    return np.array([table[degree] for degree in by.tensor_parallel.tolist()])


def _shard_sum(weights: Sequence[Weight], by: Divisions, *, flat: bool, factor: Sequence[float]) -> FloatArray:
    total = np.zeros(by.shard_ranks.size)
    factors = np.array(factor)
    for degree in np.unique(by.tensor_parallel).tolist():
        chosen = by.tensor_parallel == degree
        ranks = by.shard_ranks[chosen]
        if flat:
            elements = sum(
                weight.local_elements(degree) * share for weight, share in zip(weights, factors, strict=True)
            )
            total[chosen] = np.ceil(elements / ranks)
        else:
            first = np.array([_cut_length(weight, degree, by) for weight in weights], dtype=np.int64)
            rest = np.array(
                [weight.local_elements(degree) / _cut_length(weight, degree, by) for weight in weights],
                dtype=np.float64,
            )
            rows = -(-first[:, None] // ranks[None, :])
            total[chosen] = (rows * (rest * factors)[:, None]).sum(axis=0)
    return total


def _cut_length(weight: Weight, tensor_parallel: int, by: Divisions) -> int:
    """Return how many rows, or whole experts, of a weight are dealt out."""
    if by.cuts_whole_experts and weight.experts > 1:
        return weight.experts
    return weight.local_shape(tensor_parallel)[0]


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
