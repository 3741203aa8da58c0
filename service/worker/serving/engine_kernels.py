"""What the engine's fused kernels allocate, in place of transformers' separate operations; on fake tensors alone.

A norm makes its output and nothing in fp32, a gated feed-forward one product, and
rotating queries and keys happens in place. On a device transformers' own operations
run: their temporaries live within a norm or a rotation.

Source: vllm/model_executor/layers/layernorm.py (rms_norm; fused_add_rms_norm works in place),
activation.py (SiluAndMul, GeluAndMul), rotary_embedding (the kernel writes into its inputs).
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from plimsoll.service.worker.recording.patches import replaced

NORM_SUFFIX = "RMSNorm"
GATED_MATRICES = ("gate_proj", "up_proj", "down_proj")
ROTATION = "apply_rotary_pos_emb"


class FusedNorm(nn.Module):
    """A norm whose kernel makes its output alone."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.weight = norm.weight

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return a tensor as the kernel's output."""
        return torch.empty_like(hidden)


class FusedFeedForward(nn.Module):
    """A gated feed-forward: gate and up, their product in one kernel, and down."""

    def __init__(self, feed_forward: nn.Module) -> None:
        super().__init__()
        for name in GATED_MATRICES:
            setattr(self, name, feed_forward.get_submodule(name))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the output; gate and up are let go of once multiplied."""
        return self.get_submodule("down_proj")(self._product(hidden))  # type: ignore[no-any-return]

    def _product(self, hidden: torch.Tensor) -> torch.Tensor:
        gate, _up = (self.get_submodule(name)(hidden) for name in GATED_MATRICES[:2])
        return torch.empty_like(gate)


def fuse_layers(model: Any) -> None:
    """Put fused norms and feed-forwards in place of the model's."""
    for owner in list(model.modules()):
        for name, module in list(owner.named_children()):
            if type(module).__name__.endswith(NORM_SUFFIX) and getattr(module, "weight", None) is not None:
                setattr(owner, name, FusedNorm(module))
            elif all(isinstance(getattr(module, matrix, None), nn.Module) for matrix in GATED_MATRICES):
                setattr(owner, name, FusedFeedForward(module))


@contextlib.contextmanager
def rotating_in_place(model: Any) -> Iterator[None]:
    """Let queries and keys be rotated where they are."""
    modeling = importlib.import_module(type(model).__module__)
    if not hasattr(modeling, ROTATION):
        yield
        return
    with replaced(modeling, ROTATION, lambda query, key, *_angles, **_kwargs: (query, key)):
        yield
