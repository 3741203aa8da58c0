"""RMSNorm as one kernel computes it, and whether there are values to compute."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor

EPSILON = 1e-6  # its value changes no tensor's shape


def has_values(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is more than its shape."""
    return not isinstance(tensor, FakeTensor)


def normed(hidden: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return RMSNorm's output, and the inverse root of each token's mean square in fp32."""
    lengths = torch.linalg.vector_norm(hidden, dim=-1, dtype=torch.float32)
    statistic = lengths.square_().div_(hidden.shape[-1]).add_(EPSILON).rsqrt_()
    return (hidden * statistic.to(hidden.dtype)[..., None]).mul_(weight), statistic


def normed_gradients(
    gradient: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor, statistic: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of RMSNorm's input and weight.

    With r the statistic and n the features: r g w - r^3 x (g w . x) / n, and the sum over tokens of r g x.
    """
    inverse = statistic.to(hidden.dtype)[..., None]
    of_weight = (hidden * inverse).mul_(gradient).flatten(0, -2).sum(dim=0)
    of_hidden = gradient * weight
    alike = (of_hidden[..., None, :] @ hidden[..., None])[..., 0] / hidden.shape[-1]
    of_hidden.mul_(inverse).addcmul_(hidden, alike * inverse**3, value=-1)
    return of_hidden, of_weight
