"""A sharded model without storage, given some: this rank's shards alone are ever allocated."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.recording.tracker import local_tensor
from plimsoll.service.worker.training.optimizers import MasterWeightOptimizer, Optimizer

SEED = 0
# transformers' own default where a config states none.
INITIALIZER_RANGE = 0.02


def give_storage(model: Any, job: TraceJob, device_type: str) -> None:
    """Allocate the model's tensors on a device and fill them with random values.

    Every rank draws from the same seed, so that what is replicated is alike on all.
    """
    rotary = {name: type(module)(config=module.config) for name, module in model.named_modules() if is_rotary(module)}
    for name, _ in model.named_buffers():
        if name.rpartition(".")[0] not in rotary:
            raise NotYetAvailable(f"The buffer {name} of {type(model).__name__} is not filled on a device yet.")
    model.to_empty(device=device_type)
    torch.manual_seed(SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            fill(local_tensor(parameter), job)
        for name, module in rotary.items():
            for key, value in module.named_buffers():
                model.get_submodule(name).get_buffer(key).copy_(value)


def fill(tensor: torch.Tensor, job: TraceJob) -> None:
    """Make a tensor's values those of a new model: matrices normal, norms' scales one."""
    if tensor.dim() > 1:
        tensor.normal_(std=float(job.config.get("initializer_range", INITIALIZER_RANGE)))
    else:
        tensor.fill_(1.0)


def fill_copies(optimizer: Optimizer, job: TraceJob) -> None:
    """Fill the copies that an optimizer keeps of the parameters, which it made without values."""
    if isinstance(optimizer, MasterWeightOptimizer):
        for _, copy in optimizer.named_states():
            with torch.no_grad():
                copy.normal_(std=float(job.config.get("initializer_range", INITIALIZER_RANGE)))


def is_rotary(module: nn.Module) -> bool:
    """Return whether a module is one of transformers' rotary embeddings, whose angles follow from the config."""
    return type(module).__name__.endswith("RotaryEmbedding")
