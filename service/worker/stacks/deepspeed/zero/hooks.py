"""Where ZeRO-3 stands in a model: before and after every module's passes, and in place of torch's linear product.

Source: DeepSpeed 0.19.8, runtime/zero/parameter_offload.py (`setup_zero_stage3_hooks`,
`_register_deepspeed_module`), runtime/zero/linear.py (`LinearFunctionForZeroStage3`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from plimsoll.service.worker.recording.patches import replaced
from plimsoll.service.worker.stacks.deepspeed.zero.coordinator import Coordinator


@contextlib.contextmanager
def coordinated(model: nn.Module, coordinator: Coordinator) -> Iterator[None]:
    """Let the coordinator gather and release around every module of the model within the block."""
    handles = [model.register_forward_pre_hook(lambda *_: coordinator.begin_pass())]
    for module in model.modules():
        handles += _hooks(module, coordinator)
    try:
        with replaced(nn.functional, "linear", _linear):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _hooks(module: nn.Module, coordinator: Coordinator) -> list[Any]:
    outputs_left, inputs_left = [0], [0]

    def before_backward() -> None:
        if outputs_left[0] > 0:
            coordinator.fetch(module, is_forward=False)
            outputs_left[0] -= 1

    def after_backward() -> None:
        inputs_left[0] -= 1
        if inputs_left[0] == 0:
            coordinator.release(module, is_forward=False)

    def watched_output(tensor: torch.Tensor) -> torch.Tensor:
        outputs_left[0] += 1
        return _watched(tensor, before_backward)

    def watched_input(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad:
            inputs_left[0] += 1
            return _watched(tensor, after_backward)
        return tensor

    def before_forward(_module: nn.Module, _inputs: Any) -> None:
        coordinator.fetch(module, is_forward=True, is_recompute=torch._C._current_graph_task_id() != -1)

    def after_forward(_module: nn.Module, _inputs: Any, _output: Any) -> None:
        coordinator.release(module, is_forward=True)

    def watch_inputs(_module: nn.Module, inputs: Any) -> Any:
        inputs_left[0] = 0
        return _applied(watched_input, inputs)

    return [
        module.register_forward_pre_hook(before_forward),
        module.register_forward_hook(after_forward),
        module.register_forward_hook(lambda _module, _inputs, output: _applied(watched_output, output)),
        module.register_forward_pre_hook(watch_inputs),
    ]


class _Watched(torch.autograd.Function):
    """Nothing but a place in the graph, which calls back when the backward pass comes to it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, call: Callable[[], None]) -> torch.Tensor:
        ctx.call = call
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.call()
        return (*gradients, None)


def _watched(tensor: torch.Tensor, call: Callable[[], None]) -> torch.Tensor:
    watched: torch.Tensor = _Watched.apply(tensor, call)  # type: ignore[no-untyped-call]
    return watched


def _applied(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Return tensors, or lists and mappings of them, with a function applied; mappings are changed in place."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple | list):
        return type(value)(_applied(function, one) for one in value)
    if isinstance(value, dict):
        for key in value:
            value[key] = _applied(function, value[key])
    return value


class _Linear(torch.autograd.Function):
    """A linear product that keeps the parameter itself, whose data come and go, and no view of it."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(rows, weight, bias)
        output = rows.matmul(weight.t())
        if bias is not None:
            output += bias
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        rows, weight, bias = ctx.saved_tensors
        of_rows = gradient.matmul(weight) if ctx.needs_input_grad[0] else None
        of_weight = of_bias = None
        flat = gradient.reshape(-1, gradient.shape[-1])
        if ctx.needs_input_grad[1]:
            of_weight = flat.t().matmul(rows.reshape(-1, rows.shape[-1]))
        if bias is not None and ctx.needs_input_grad[2]:
            of_bias = flat.sum(0)
        return of_rows, of_weight, of_bias


def _linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    return _Linear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
