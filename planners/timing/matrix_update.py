"""Operations of optimizers that multiply matrices: Muon's orthogonal update.

Each hidden matrix of m x n, m the shorter side, takes five steps of Newton-Schulz: A = X·Xᵀ, b·A + c·A², and its
product with X, in 16 bits (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; torch, optim/_muon.py;
NVIDIA-NeMo/Emerging-Optimizers, orthogonalized_optimizers/muon_utils.py, `newton_schulz_step`).
"""

from __future__ import annotations

import functools

import numpy as np

from plimsoll.planners.architecture import Part, Weight
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import Candidates, FloatArray
from plimsoll.planners.layouts.stages import all_stages
from plimsoll.planners.memory.dealt import Shapes, busiest_rank
from plimsoll.planners.memory.holdings import shard_ranks
from plimsoll.planners.memory.shards import WHOLE, divisions
from plimsoll.planners.timing.compute import ATTENTION_FORMAT, LOW_PRECISION_FORMATS
from plimsoll.planners.timing.efficiency import Efficiency

NEWTON_SCHULZ_STEPS = 5
MOST_KEPT_JOBS = 64
MATRIX_DIMENSIONS = 2


def matrix_update_seconds(layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency) -> FloatArray:
    """Return the seconds of a rank's update of its matrices; zero for optimizers that work by element."""
    if not job.optimizer.orthogonalizes:
        return np.zeros(1)
    wanted = job.precision.compute_format
    rates = hardware.gpu.peak_flops_per_second
    rate = rates[ATTENTION_FORMAT if wanted in LOW_PRECISION_FORMATS else wanted]
    result: FloatArray = _rank_flops(layouts, job) / (rate * efficiency.gpu.matmul_peak_fraction)
    return result


def _rank_flops(layouts: Candidates, job: Job) -> FloatArray:
    """Return the operations on one rank: its own matrices where they are dealt out whole, and else its share of all."""
    held_from = job.profile.sharding.optimizer_from
    ranks = np.where(layouts.zero_stage >= held_from, shard_ranks(layouts, job), WHOLE)
    if job.profile.update.deals_parameters:
        of_stages = busiest_rank(all_stages(layouts, job), divisions(layouts, ranks, job), job, _flops_of_shapes)
        result: FloatArray = of_stages.max(axis=0)
        return result
    divided = layouts.tensor_parallel * layouts.pipeline_parallel * np.maximum(ranks, 1)
    return matrix_update_flops(job) / divided


@functools.lru_cache(maxsize=MOST_KEPT_JOBS)
def matrix_update_flops(job: Job) -> float:
    """Return the operations of one update of all matrices together; zero for optimizers that work by element."""
    if not job.optimizer.orthogonalizes:
        return 0.0
    learning = ((part.block.repeats, weight) for part in job.parts for weight in part.trainable)
    return sum(repeats * _flops(weight) for repeats, weight in learning if _is_orthogonalized(weight, job))


def _is_orthogonalized(weight: Weight, job: Job) -> bool:
    """Return whether the optimizer treats the weight as a hidden matrix, which has one moment the fewer."""
    return job.optimizer.moments_of(weight) == job.optimizer.hidden_matrix_moments


def _flops(weight: Weight) -> float:
    """Return the operations for each matrix of the weight."""
    rows, columns = weight.shape[-2:]
    return weight.elements // (rows * columns) * _newton_schulz_flops(rows, columns)


def _flops_of_shapes(shapes: Shapes) -> float:
    """Return the operations of one parameter of a rank, of whose blocks queries, keys and values are apart."""
    matrices = [(weight, shape) for weight, shape in shapes if len(shape) == MATRIX_DIMENSIONS]
    if not matrices or matrices[0][0].part in (Part.EMBEDDING, Part.HEAD):
        return 0.0
    if matrices[0][0].part is Part.ATTENTION:
        return sum(_newton_schulz_flops(*shape) for _, shape in matrices)
    return _newton_schulz_flops(sum(rows for _, (rows, _) in matrices), matrices[0][1][1])


def _newton_schulz_flops(rows: int, columns: int) -> float:
    """Return five steps of 2·m²·n, 2·m³ and 2·m²·n."""
    short, long = min(rows, columns), max(rows, columns)
    return NEWTON_SCHULZ_STEPS * (4.0 * short**2 * long + 2.0 * short**3)
