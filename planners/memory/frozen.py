"""Bytes of weights that do not learn: LoRA's base in 16 bits, QLoRA's in four."""

from __future__ import annotations

import functools
import math

from planners.architecture import Part, Weight
from planners.formats import tensor_bytes
from planners.memory.job import BlockWeights, Job
from planners.memory.shards import MOST_KEPT_ANSWERS, Way, local, matrix_elements
from planners.sharding import first_rank
from planners.sharding.weights import LocalWeight

# Dettmers et al. 2023 quote half a byte a base parameter, its scales apart (arXiv:2305.14314).
QUOTED_FOUR_BIT_BYTES = 0.5


@functools.lru_cache(maxsize=MOST_KEPT_ANSWERS)
def frozen_bytes(part: BlockWeights, way: Way, job: Job) -> float:
    """Return what a rank stores of a part's frozen weights, divided over the shard ranks.

    bitsandbytes quantizes the layers' matrices and leaves embedding, head and
    norms in 16 bits; the textbook counts half a byte for every parameter.
    """
    plain, packed = _apart(part, job)
    total = first_rank(plain, way.layout, way.policy).stored * _plain_bytes(job)
    for weight in packed:
        held, mesh = local(weight, way)
        total += math.ceil(_four_bit_bytes(held, job) / mesh.shard)
    return total


@functools.lru_cache(maxsize=MOST_KEPT_ANSWERS)
def whole_frozen_bytes(part: BlockWeights, way: Way, job: Job) -> float:
    """Return the frozen bytes of a gathered part: tensor and expert parallelism alone divide it."""
    plain, packed = _apart(part, job)
    total = first_rank(plain, way.layout, way.policy).whole * _plain_bytes(job)
    return total + sum(_four_bit_bytes(local(weight, way)[0], job) for weight in packed)


@functools.lru_cache(maxsize=MOST_KEPT_ANSWERS)
def unpacked_bytes(part: BlockWeights, way: Way, job: Job) -> float:
    """Return what unpacking a part's quantized matrices reads (codes and scales) and writes (16 bits) on a rank."""
    total = 0.0
    for weight in part.frozen:
        if is_quantized(weight):
            held, _ = local(weight, way)
            exact = job.profile.exact_quantization
            packed = _four_bit_bytes(held, job) if exact else held.stored_elements * QUOTED_FOUR_BIT_BYTES
            total += packed + job.precision.compute_bytes * held.stored_elements
    return total


def _apart(part: BlockWeights, job: Job) -> tuple[list[Weight], list[Weight]]:
    """Return the frozen weights in one width, and those packed in four bits tensor by tensor."""
    packs = job.method == "qlora" and job.profile.exact_quantization
    packed = [weight for weight in part.frozen if packs and is_quantized(weight)]
    return [weight for weight in part.frozen if not (packs and is_quantized(weight))], packed


def _plain_bytes(job: Job) -> float:
    quotes = job.method == "qlora" and not job.profile.exact_quantization
    return QUOTED_FOUR_BIT_BYTES if quotes else float(job.precision.compute_bytes)


def _four_bit_bytes(held: LocalWeight, job: Job) -> int:
    one = tensor_bytes("nf4", held.tensor.shape, double_quantization=job.lora.double_quantization)
    return held.tensors * one


def is_quantized(weight: Weight) -> bool:
    """Return whether bitsandbytes would quantize the weight: a layer's matrix."""
    return weight.is_linear and weight.part not in (Part.EMBEDDING, Part.HEAD)


@functools.lru_cache(maxsize=MOST_KEPT_ANSWERS)
def dequantized_matrix_bytes(part: BlockWeights, way: Way, job: Job) -> int:
    """Return the largest matrix that has to be unpacked before it can be multiplied by."""
    _, packed = _apart(part, job)
    return job.precision.compute_bytes * max((matrix_elements(weight, way) for weight in packed), default=0)
