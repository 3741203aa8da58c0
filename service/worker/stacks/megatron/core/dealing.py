"""Which rank of a stage Megatron-Core's layer-wise optimizer deals the most states to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from plimsoll.service.worker.jobs.job import TraceJob

MATRIX_DIMENSIONS = 2
FP32_BYTES = 4


def fullest_rank(job: TraceJob, optimizer: Any) -> int:
    """Return the place in its stage of the rank with the most bytes of fp32 copies and moments; 0 where all have all.

    Ranks count tensor parallelism first; those that share experts are counted before those that have the same ones.
    """
    dense = _state_bytes(optimizer.dp_cp_params_list)
    of_experts = _state_bytes(optimizer.expt_dp_params_list)
    tensor = job.tensor_parallel
    own = job.expert_parallel * (job.expert_tensor_parallel if job.expert_parallel > 1 else tensor)

    def held(place: int) -> int:
        return dense[place // tensor] + of_experts[place // own % len(of_experts)]

    return max(range(len(dense) * tensor), key=held)


def _state_bytes(dealt: Sequence[Sequence[torch.nn.Parameter]] | None) -> list[int]:
    """Return the bytes that each rank of a group has; as good as none where nothing was dealt."""
    return [sum(map(_bytes_of, own)) for own in dealt or [()]]


def _bytes_of(parameter: torch.nn.Parameter) -> int:
    """Return a copy and one moment of a matrix, two of all else (core/optimizer/muon.py)."""
    is_matrix = parameter.dim() == MATRIX_DIMENSIONS
    is_muons = is_matrix and not getattr(parameter, "is_embedding_or_output_parameter", False)
    return FP32_BYTES * parameter.numel() * (2 if is_muons else 3)
