"""Tells a ledger which decoder layer is at work, in the forward and in the backward pass.

A layer's forward pass begins before all that hooks do for it (FSDP2 gathers it in one, DeepSpeed too) and lasts until
the next one's begins. Its backward pass begins once the gradient of its output is whole, and lasts until that of the
layer below is. Hooks on tensors see all of it and keep none of them alive.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from plimsoll.service.worker.jobs.job import PipelineStage

Mark = Callable[[int | None], None]


@contextlib.contextmanager
def marking_layers(
    layers_of_chunks: Iterable[Sequence[Any]], chunks: Sequence[PipelineStage], mark: Mark
) -> Iterator[None]:
    """Call `mark` within the block with the number of each layer as it begins, and with None behind the last."""
    handles: list[RemovableHandle] = []
    for layers, chunk in zip(layers_of_chunks, chunks, strict=True):
        for number, layer in enumerate(layers, chunk.first_layer):
            handles += _watched(layer, number, mark)
        if layers:
            handles.append(layers[0].register_forward_pre_hook(_ending_backwards(mark), with_kwargs=True, prepend=True))
            handles.append(layers[-1].register_forward_hook(lambda *_: mark(None)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _watched(layer: nn.Module, number: int, mark: Mark) -> Iterator[RemovableHandle]:
    """Watch a layer from before and behind the hooks that stand on it: each may differentiate its own part first."""
    begin = functools.partial(mark, number)
    yield layer.register_forward_pre_hook(lambda *_: begin(), prepend=True)
    for prepend in (True, False):
        yield layer.register_forward_hook(
            lambda _layer, _inputs, output: _once(_tensor(output), begin), prepend=prepend
        )


def _ending_backwards(mark: Mark) -> Callable[..., None]:
    def entered(_layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        _once(_tensor(inputs) if inputs else named.get("hidden_states"), functools.partial(mark, None))

    return entered


def _tensor(values: Any) -> Any:
    return values[0] if isinstance(values, tuple) else values


def _once(tensor: Any, act: Callable[[], None]) -> None:
    """Act when the gradient of a tensor is whole; what outlives a pass is not to be told of it again."""
    if not isinstance(tensor, torch.Tensor) or not tensor.requires_grad:
        return

    def told(_gradient: torch.Tensor) -> None:
        handle.remove()
        act()

    handle = tensor.register_hook(told)  # type: ignore[no-untyped-call]
