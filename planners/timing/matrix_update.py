"""Operations of optimizers that multiply matrices: Muon's orthogonal update.

Each hidden matrix of m x n, m the shorter side, takes five steps of Newton-Schulz: A = X·Xᵀ, b·A + c·A², and its
product with X, in 16 bits (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; torch, optim/_muon.py).
"""

from __future__ import annotations

import functools

from plimsoll.planners.architecture import Weight
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.timing.compute import ATTENTION_FORMAT, LOW_PRECISION_FORMATS
from plimsoll.planners.timing.efficiency import Efficiency

NEWTON_SCHULZ_STEPS = 5
MOST_KEPT_JOBS = 64


def matrix_update_seconds(job: Job, hardware: Hardware, efficiency: Efficiency) -> float:
    """Return the seconds of one update of all matrices on one rank; zero for optimizers that work by element."""
    flops = matrix_update_flops(job)
    wanted = job.precision.compute_format
    rates = hardware.gpu.peak_flops_per_second
    rate = rates[ATTENTION_FORMAT if wanted in LOW_PRECISION_FORMATS else wanted]
    return flops / (rate * efficiency.gpu.matmul_peak_fraction)


@functools.lru_cache(maxsize=MOST_KEPT_JOBS)
def matrix_update_flops(job: Job) -> float:
    """Return the operations of one update of all matrices together; zero for optimizers that work by element."""
    if not job.optimizer.gram_temporary_bytes:
        return 0.0
    learning = ((part.block.repeats, weight) for part in job.parts for weight in part.trainable)
    return sum(repeats * _flops(weight) for repeats, weight in learning if _is_orthogonalized(weight, job))


def _is_orthogonalized(weight: Weight, job: Job) -> bool:
    """Return whether the optimizer treats the weight as a hidden matrix, which has one moment the fewer."""
    return job.optimizer.moments_of(weight) == job.optimizer.hidden_matrix_moments


def _flops(weight: Weight) -> float:
    """Return five steps of 2·m²·n, 2·m³ and 2·m²·n for each matrix of the weight."""
    rows, columns = weight.shape[-2:]
    short, long = min(rows, columns), max(rows, columns)
    matrices = weight.elements // (rows * columns)
    return NEWTON_SCHULZ_STEPS * matrices * (4.0 * short**2 * long + 2.0 * short**3)
