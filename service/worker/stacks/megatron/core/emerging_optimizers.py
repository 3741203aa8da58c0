"""What Megatron-Core's Muon takes from Emerging-Optimizers, which is in no package index: its step and its products.

Each operation allocates and lets go of what theirs does. A worker that has the package runs that.

Source: NVIDIA-NeMo/Emerging-Optimizers v0.1.0, the release that Megatron-LM core_v0.16.1 names (pyproject.toml):
orthogonalized_optimizers/orthogonalized_optimizer.py, muon_utils.py, muon.py, mixin.py.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

PACKAGE = "emerging_optimizers"
QUINTIC = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
SMALLEST_NORM = 1e-7


class OrthogonalizedOptimizer(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal by whoever inherits it."""

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum_beta: float,
        weight_decay: float,
        *,
        use_nesterov: bool,
        scaled_orthogonalize_fn: Callable[..., torch.Tensor],
        **_settings: Any,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum_beta": momentum_beta, "weight_decay": weight_decay})
        self._is_nesterov = use_nesterov
        self.scaled_orthogonalize_fn = scaled_orthogonalize_fn

    @torch.no_grad()
    def step(self, *_closure: Any) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter.grad)
                average = state["momentum_buffer"]
                parameter.add_(parameter, alpha=-group["weight_decay"] * group["lr"])
                average.lerp_(parameter.grad, 1 - group["momentum_beta"])
                update = parameter.grad.lerp(average, group["momentum_beta"]) if self._is_nesterov else average
                update = self.orthogonalize(parameter, update)
                parameter.add_(update, alpha=-group["lr"])
                del update

    def orthogonalize(self, _parameter: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        """Return the orthogonal update."""
        return self.scaled_orthogonalize_fn(update)


def newton_schulz_tp(
    update: torch.Tensor, *, steps: int, partition_dim: int | None = None, **_settings: Any
) -> torch.Tensor:
    """Return the orthogonal matrix nearest to a rank's own block, nearly."""
    if partition_dim is not None:
        raise NotImplementedError("Tensor-parallel ranks orthogonalize their own blocks (--muon-tp-mode blockwise).")
    is_tall = update.size(-2) > update.size(-1)
    if is_tall:
        update = update.mT
    product = torch.nn.functional.normalize(update, p=2, dim=(-2, -1), eps=SMALLEST_NORM)  # type: ignore[arg-type]
    product = product.to(torch.bfloat16)
    for step in range(steps):
        product = _newton_schulz_step(product, *QUINTIC[step % len(QUINTIC)])
    product = product.to(torch.float32)
    return product.mT if is_tall else product


def _newton_schulz_step(matrix: torch.Tensor, first: float, second: float, third: float) -> torch.Tensor:
    gram = matrix @ matrix.mT
    polynomial = torch.addmm(gram, gram, gram, alpha=third, beta=second)
    return torch.addmm(matrix, polynomial, matrix, alpha=1.0, beta=first)


def get_muon_scale_factor(rows: int, columns: int, **_mode: Any) -> float:
    """Return the factor of an update of that shape, in its default mode `spectral`."""
    return float(max(rows, columns) ** 0.5)


@contextlib.contextmanager
def named_where_missing() -> Iterator[None]:
    """Let Megatron-Core import the package's names from here where the package is not installed."""
    if importlib.util.find_spec(PACKAGE) is not None:
        yield
        return
    optimizers, utilities = f"{PACKAGE}.orthogonalized_optimizers", f"{PACKAGE}.orthogonalized_optimizers.muon_utils"
    modules = {name: ModuleType(name) for name in (PACKAGE, optimizers, utilities)}
    modules[optimizers].__dict__.update(
        OrthogonalizedOptimizer=OrthogonalizedOptimizer, get_muon_scale_factor=get_muon_scale_factor
    )
    modules[utilities].__dict__["newton_schulz_tp"] = newton_schulz_tp
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
