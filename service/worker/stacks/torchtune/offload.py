"""torchtune's own offload of activations on fake tensors: two memories where all of them are on one device.

Its code names a GPU, and makes pinned copies of what autograd keeps on a stream of its own
(torchtune 0.6.1, training/_activation_offloading.py, `OffloadActivations`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from plimsoll.service.worker.recording.host_memory import on_host
from plimsoll.service.worker.recording.patches import replaced

HOST_NAME, GPU_NAME = "cpu", "cuda"


def activations_kept_by(model: Any, is_offloaded: bool) -> contextlib.AbstractContextManager[object]:
    """Return torchtune's own context of every forward pass; call it within `streams_told_apart`."""
    from torchtune import training

    keeping: Any = training.get_act_offloading_ctx_manager(model, is_offloaded)
    if is_offloaded:
        keeping.pack_hook, keeping.unpack_hook = _on_both(keeping.pack_hook), _on_both(keeping.unpack_hook)
    context: contextlib.AbstractContextManager[object] = keeping
    return context


def _on_both(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(kept: Any) -> Any:
        with _TwoMemories():
            return hook(kept)

    return call


class _TwoMemories(TorchFunctionMode):
    """Makes pinned copies on the host, and brings them back as new tensors on the device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty_like and kwargs.get("device") == HOST_NAME:
            with on_host():
                return func(*args, **{name: given for name, given in kwargs.items() if name != "pin_memory"})
        if func is torch.Tensor.to and GPU_NAME in args:
            return args[0].clone()
        return func(*args, **kwargs)


@contextlib.contextmanager
def streams_told_apart() -> Iterator[None]:
    """Give torchtune's offload the streams that a trace tells apart for those of a GPU."""
    # The method belongs to the base class: hide it here, and uncover it after.
    torch.Tensor.record_stream = lambda *_stream: None  # type: ignore[method-assign]
    try:
        with (
            replaced(torch.cuda, "default_stream", torch.cpu.current_stream),
            replaced(torch.cuda, "Stream", torch.cpu.Stream),
            replaced(torch.cuda, "stream", torch.cpu.stream),
        ):
            yield
    finally:
        del torch.Tensor.record_stream
