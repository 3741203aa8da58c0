"""What DeepSpeed's ZeRO is told, sizes of its buckets, and what its optimizers do alike with gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from plimsoll.planners.memory import nvme
from plimsoll.planners.stacks.profile import load_profile

# DeepSpeed 0.19.8, runtime/zero/config.py, `DeepSpeedZeroConfig`: what a config without a word of them asks for.
PERSISTENCE_THRESHOLD_ELEMENTS = 100_000  # stage3_param_persistence_threshold
MOST_LIVE_ELEMENTS = 1_000_000_000  # stage3_max_live_parameters
REUSE_DISTANCE_ELEMENTS = 1_000_000_000  # stage3_max_reuse_distance


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroSettings:
    """Sizes in elements, as DeepSpeed's config names them.

    `accumulation_dtype` is `data_types.grad_accum_dtype`; unsaid it is the model's own.
    """

    reduce_bucket: int
    prefetch_bucket: int
    sub_group: int
    accumulation_dtype: torch.dtype
    persistence_threshold: int = PERSISTENCE_THRESHOLD_ELEMENTS
    most_live: int = MOST_LIVE_ELEMENTS
    reuse_distance: int = REUSE_DISTANCE_ELEMENTS


def zero_settings(framework: str, accumulation_dtype: torch.dtype) -> ZeroSettings:
    """Return the settings that a plan's `deepspeed.json` is written with."""
    told = load_profile(framework).zero
    if told is None:
        raise ValueError(f"{framework} has no engine that reduces in buckets of its own.")
    return ZeroSettings(
        reduce_bucket=told.reduce_bucket_elements,
        prefetch_bucket=told.prefetch_bucket_elements,
        sub_group=nvme.SUB_GROUP_ELEMENTS,
        accumulation_dtype=accumulation_dtype,
    )


def average(gradient: torch.Tensor, ranks: int) -> torch.Tensor:
    """Divide a gradient, or a bucket of them, by the number of ranks where it lies."""
    return gradient.div_(ranks)


def norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Return the norm of all gradients, each in fp64 for as long as its own norm takes.

    Source: DeepSpeed, runtime/zero/utils.py, `get_norm_dtype`; stage_1_and_2.py and stage3.py, `get_grad_norm_direct`.
    """
    norms = [torch.linalg.vector_norm(gradient.to(torch.float64)) for gradient in gradients]
    return torch.stack(norms).pow(2.0).sum().float().pow(0.5)


def accumulate_into(parameter: nn.Parameter, place: torch.Tensor) -> None:
    """Copy a parameter's gradient into a place of a buffer, which holds it from then on."""
    gradient = gradient_of(parameter)
    place.copy_(gradient.view(-1))
    gradient.data = place.view(gradient.shape)


def gradient_of(parameter: nn.Parameter) -> torch.Tensor:
    """Return a parameter's gradient; raise `ValueError` where the backward pass made none."""
    if parameter.grad is None:
        raise ValueError("A parameter took no part in the backward pass.")
    return parameter.grad
