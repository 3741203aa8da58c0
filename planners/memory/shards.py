"""How many elements of its weights a rank holds, for whole arrays of layouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planners.architecture import Weight
from planners.layout.candidates import FloatArray, IntArray
from planners.memory.optimizers import STEP_COUNTER_BYTES, OptimizerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Divisions:
    """The distinct (tensor parallel, shard ranks) pairs among many layouts.

    A table has one entry a pair; `inverse` spreads it over the layouts.
    """

    tensor_parallel: IntArray
    shard_ranks: IntArray
    inverse: IntArray


def divisions(tensor_parallel: IntArray, shard_ranks: IntArray) -> Divisions:
    """Return the distinct pairs; degrees stay below 2^31, so that a pair is one integer."""
    pairs, inverse = np.unique(tensor_parallel << 31 | shard_ranks, return_inverse=True)
    return Divisions(tensor_parallel=pairs >> 31, shard_ranks=pairs & (2**31 - 1), inverse=inverse)


def split_elements(weights: Sequence[Weight], by: Divisions) -> FloatArray:
    """Return each rank's elements after the tensor split alone."""
    return _per_tensor_degree(weights, by)[by.inverse]


def shard_elements(weights: Sequence[Weight], by: Divisions, *, flat: bool) -> FloatArray:
    """Return the elements a rank stores after the tensor split and ZeRO's.

    A flat cut rounds the sum up once; a cut of each tensor's first dimension
    rounds every tensor, and a rank whose part is short or empty stores as much.
    """
    return _shard_sum(weights, by, flat=flat, factor=[1.0] * len(weights))[by.inverse]


def padded_elements(weights: Sequence[Weight], by: Divisions, *, flat: bool) -> FloatArray:
    """Return the elements of a gathered or to-be-reduced buffer: all ranks' stored parts."""
    if flat:
        return split_elements(weights, by)
    return (_shard_sum(weights, by, flat=False, factor=[1.0] * len(weights)) * by.shard_ranks)[by.inverse]


def moment_bytes(
    weights: Sequence[Weight], by: Divisions, *, flat: bool, optimizer: OptimizerKind, element_bytes: float
) -> FloatArray:
    """Return the optimizer's moments on a rank: moments of each element, or rows and columns.

    One fp32 step counter a tensor is added where the optimizer has states and
    tensors keep their identity.
    """
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
            first = np.array([weight.local_shape(degree)[0] for weight in weights], dtype=np.int64)
            rest = np.array(
                [weight.local_elements(degree) / weight.local_shape(degree)[0] for weight in weights], dtype=np.float64
            )
            rows = -(-first[:, None] // ranks[None, :])
            total[chosen] = (rows * (rest * factors)[:, None]).sum(axis=0)
    return total


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
