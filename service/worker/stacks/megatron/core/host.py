"""Megatron-Core's hybrid optimizer on fake tensors: all that it makes lies on the host.

A job's parameters are in 16 bits and its copies on the host in 32, by which its code is told which is which: both are
fake tensors of the CPU.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from plimsoll.service.worker.recording.host_memory import on_host
from plimsoll.service.worker.recording.patches import replaced
from plimsoll.service.worker.training.foreign_code import names_given


class _PlacedByWidth(TorchFunctionMode):
    """Calls tensors in fp32 the host's and all others a GPU's; one that is pinned is as large as it was."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return args[0].dtype is not torch.float32
        if func is torch.Tensor.pin_memory:
            return args[0]
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def hybrid_optimizer_on_host() -> Iterator[None]:
    """Let the hybrid optimizer be made and run, with one stream that does all in turn."""
    from megatron.core.optimizer import optimizer_config
    from megatron.core.optimizer.cpu_offloading import hybrid_optimizer
    from megatron.core.optimizer.cpu_offloading.hybrid_optimizer import HybridDeviceOptimizer

    stream = SimpleNamespace(wait_stream=_nothing, record_event=_event)
    streams = SimpleNamespace(current_stream=lambda: stream, stream=lambda _stream: contextlib.nullcontext())
    with (
        names_given(optimizer_config, is_te_min_version=lambda *_version: True),
        names_given(hybrid_optimizer, torch=_with_streams(streams)),
        replaced(HybridDeviceOptimizer, "__init__", _on_host(HybridDeviceOptimizer.__init__)),
        replaced(HybridDeviceOptimizer, "step", _on_host(HybridDeviceOptimizer.step)),
    ):
        yield


def _on_host(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method, all that it allocates counted as the host's."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with on_host(), _PlacedByWidth():
            return method(*args, **kwargs)

    return call


def _with_streams(streams: Any) -> Any:
    """Return torch as a module finds it, with other streams of a GPU."""
    return SimpleNamespace(**{**vars(torch), "cuda": streams, "float32": torch.float32})


def _nothing(*_streams: Any) -> None:
    """Wait for nothing."""


def _event() -> Any:
    return SimpleNamespace(synchronize=_nothing, wait=_nothing)
