"""Low-rank adapters beside frozen matrices, with the tensors that peft's layers make and keep.

Source: Hu et al. 2021, arXiv:2106.09685; peft 0.21, tuners/lora/layer.py,
`Linear.forward`, and tuners/lora/bnb.py, `Linear4bit.forward`. Dropout is off if not asked for, as peft's default is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.jobs.adapters import is_named
from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.training.decoder_parts import decoder_layers
from plimsoll.service.worker.training.kernels.four_bit import FourBitLinear

SCALING = 1.0  # lora_alpha / rank; its value changes no tensor


class AdaptedLinear(nn.Module):
    """A frozen linear layer and, beside it, A (rank x inputs) behind a dropout, and B (outputs x rank)."""

    def __init__(
        self, base: nn.Module, *, features: tuple[int, int], rank: int, dtype: torch.dtype, dropout: float = 0.0
    ) -> None:
        super().__init__()
        inputs, outputs = features
        self.base_layer = base
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.lora_A = nn.Linear(inputs, rank, bias=False, dtype=dtype)
        self.lora_B = nn.Linear(rank, outputs, bias=False, dtype=dtype)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the sum of both ways, in the base's format.

        The input is cast to the adapter's, but beside four bits under autocast, which casts it as it needs.
        """
        result: torch.Tensor = self.base_layer(hidden)
        base_dtype = result.dtype
        if not (isinstance(self.base_layer, FourBitLinear) and torch.is_autocast_enabled(hidden.device.type)):
            hidden = hidden.to(self.lora_A.weight.dtype)
        result = result + self.lora_B(self.lora_A(self.dropout(hidden))) * SCALING
        return result.to(base_dtype)


def _is_matrix(module: nn.Module) -> bool:
    """Return whether peft puts adapters beside a module: a linear layer, or GPT-2's with the input's features first."""
    from transformers.pytorch_utils import Conv1D

    return type(module) in (nn.Linear, Conv1D)


def _features(matrix: Any) -> tuple[int, int]:
    """Return how many features a matrix reads and how many it writes."""
    return (matrix.in_features, matrix.out_features) if type(matrix) is nn.Linear else (matrix.nx, matrix.nf)


def adapt(model: Any, job: TraceJob, dtype: torch.dtype) -> None:
    """Freeze the model and put adapters in that format beside the targeted matrices of its layers.

    QLoRA packs every matrix of a layer in four bits, targeted or not, and leaves
    embedding, norms and head as they are. Raises `InvalidQuestion` where no matrix
    is targeted.
    """
    model.requires_grad_(False)
    adapted = 0
    for layer in decoder_layers(model):
        for path, linear in [(path, module) for path, module in layer.named_modules() if _is_matrix(module)]:
            parent_path, _, name = path.rpartition(".")
            base: nn.Module = linear
            if job.method == "qlora":
                base = FourBitLinear(linear, double_quantization=job.lora.double_quantization)
            if job.lora.targets_all_linear or is_named(path, job.lora.target_modules):
                adapted += 1
                features = _features(linear)
                base = AdaptedLinear(
                    base, features=features, rank=job.lora.rank, dtype=dtype, dropout=job.lora.dropout or 0.0
                )
            setattr(layer.get_submodule(parent_path), name, base)
    if not adapted:
        raise InvalidQuestion(
            f"None of {', '.join(job.lora.target_modules)} is a matrix of {type(model).__name__}'s layers.",
            pointer="/training/lora/target_modules",
        )
