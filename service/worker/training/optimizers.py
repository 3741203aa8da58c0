"""The optimizer of a job, with its states where the stack keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from plimsoll.service.worker.jobs.kernel_rules import KERNEL_RULES
from plimsoll.service.worker.recording.tracker import local_tensor
from plimsoll.service.worker.training.decoder_parts import decoder_layers
from plimsoll.service.worker.training.kernel_optimizers import KernelOptimizer

LEARNING_RATE = 1e-4  # no value is ever computed
MOMENTUM = 0.9
MATRIX_DIMS = 2


class Optimizer(Protocol):
    """What a traced step needs of an optimizer."""

    def step(self) -> Any:
        """Update the parameters."""

    def zero_grad(self) -> Any:
        """Drop the gradients."""

    def named_states(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the states' tensors, once they exist."""


class TorchOptimizer:
    """An optimizer of torch's or transformers' own code over the parameters as they are, or two over parts of them."""

    def __init__(self, *inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    def step(self) -> None:
        """Update the parameters."""
        for optimizer in self.inner:
            optimizer.step()

    def zero_grad(self) -> None:
        """Drop the gradients' tensors."""
        for optimizer in self.inner:
            optimizer.zero_grad()

    def named_states(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the states' tensors, once they exist."""
        for optimizer in self.inner:
            for state in optimizer.state.values():
                yield from ((name, value) for name, value in state.items() if isinstance(value, torch.Tensor))


class MasterWeightOptimizer:
    """An optimizer over an fp32 copy of 16-bit parameters, its states shared out over ranks.

    A parameter's copy and states are cut into as many equal pieces as `shards` says of it,
    of which this rank holds one; with one shard it holds all. Gradients are the parameters'
    own 16-bit ones, cast a parameter at a time, or with `fp32_gradients` they are
    added to an fp32 buffer as the backward pass makes them; a parameter knows its buffer as `main_grad`, for
    kernels that add to it themselves.

    Source: Rajbhandari et al. 2020, "ZeRO", arXiv:1910.02054, section 3.1; for the
    fp32 buffer Megatron-Core's `param_and_grad_buffer.py`.
    """

    def __init__(
        self, name: str, parameters: Iterable[nn.Parameter], *, shards: Sequence[int], fp32_gradients: bool
    ) -> None:
        self._parameters = list(parameters)
        self._shards = tuple(shards)
        self._masters = [
            nn.Parameter(torch.empty(-(-local_tensor(parameter).numel() // ranks), dtype=torch.float32))
            for parameter, ranks in zip(self._parameters, self._shards, strict=True)
        ]
        self._inner = replicated_optimizer(name, self._masters)
        self.main_gradients: list[torch.Tensor] = []
        if fp32_gradients:
            self.main_gradients = [
                torch.zeros(local_tensor(parameter).shape, dtype=torch.float32) for parameter in self._parameters
            ]
            for parameter, main_gradient in zip(self._parameters, self.main_gradients, strict=True):
                parameter.main_grad = main_gradient  # type: ignore[attr-defined]
                parameter.register_post_accumulate_grad_hook(_adding_to(main_gradient))  # type: ignore[no-untyped-call]

    def step(self) -> None:
        """Update this rank's piece of every parameter's copy, and write it back."""
        for index, (parameter, master) in enumerate(zip(self._parameters, self._masters, strict=True)):
            gradient = self.main_gradients[index] if self.main_gradients else local_gradient(parameter)
            master.grad = self._piece(index, gradient).to(torch.float32)
            if not self.main_gradients:
                self._step_one(master)
        if self.main_gradients:
            self._inner.step()
            for master in self._masters:
                master.grad = None
        with torch.no_grad():
            for index, (parameter, master) in enumerate(zip(self._parameters, self._masters, strict=True)):
                piece = self._piece(index, local_tensor(parameter))
                piece.copy_(master[: piece.numel()])

    def zero_grad(self) -> None:
        """Drop the 16-bit gradients; an fp32 buffer stays and is zeroed."""
        for parameter in self._parameters:
            parameter.grad = None
        for main_gradient in self.main_gradients:
            main_gradient.zero_()

    def named_states(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the fp32 copy and the states' tensors, once they exist."""
        for master in self._masters:
            yield "fp32 copy", master
        yield from self._inner.named_states()

    def _step_one(self, master: nn.Parameter) -> None:
        """Update one copy: the others have no gradient, so the optimizer passes over them."""
        self._inner.step()
        master.grad = None

    def _piece(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        """Return rank 0's piece of a parameter, or of a tensor like it, as a view."""
        return tensor.detach().reshape(-1)[: -(-tensor.numel() // self._shards[index])]


def model_optimizer(name: str, model: Any) -> Optimizer:
    """Return the optimizer of that name over what of a model learns, its matrices told apart where it does so.

    Muon is torch's, over the layers' matrices, beside AdamW over the rest; Adafactor transformers'. Of bitsandbytes'
    optimizers in eight bits the embedding's states stay in fp32.
    """
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if name == "muon":
        matrices = [parameter for parameter in decoder_layers(model).parameters() if parameter.dim() == MATRIX_DIMS]
        chosen = {id(parameter) for parameter in matrices}
        rest = [parameter for parameter in learning if id(parameter) not in chosen]
        return TorchOptimizer(torch.optim.Muon(matrices, lr=LEARNING_RATE), torch_optimizer("adamw", rest))
    if name == "adafactor":
        from transformers.optimization import Adafactor

        # As transformers' Trainer makes it (trainer_optimizer.py): no first moment.
        adafactor = Adafactor(learning, lr=LEARNING_RATE, scale_parameter=False, relative_step=False)  # type: ignore[no-untyped-call]
        return TorchOptimizer(adafactor)
    if name in KERNEL_RULES:
        embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
        return KernelOptimizer(name, learning, wide=[module.weight for module in embeddings])
    return TorchOptimizer(torch_optimizer(name, learning))


def replicated_optimizer(name: str, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Return the optimizer of that name over parameters that have lost their shapes."""
    if name in KERNEL_RULES:
        return KernelOptimizer(name, parameters)
    return TorchOptimizer(torch_optimizer(name, parameters))


def torch_optimizer(name: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return torch's optimizer of that name: AdamW fused, SGD over lists (DTensor has no fused kernel for it)."""
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)
    momentum = MOMENTUM if name == "sgd-momentum" else 0.0
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=momentum, foreach=True)


def local_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Return this rank's gradient, laid out as the parameter is.

    DTensor may leave an embedding's gradient whole on every rank.
    """
    gradient = parameter.grad
    if gradient is None:
        raise ValueError("A parameter took no part in the backward pass.")
    if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
        gradient = gradient.redistribute(placements=parameter.placements)
    return local_tensor(gradient)


def _adding_to(main_gradient: torch.Tensor) -> Any:
    def add(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            main_gradient.add_(local_gradient(parameter))
            parameter.grad = None

    return add
