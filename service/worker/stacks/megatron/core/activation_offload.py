"""Megatron-Core's fine-grained offload of activations on fake tensors: what it copies to the host lies there.

Source: Megatron-Core 0.16.1, pipeline_parallel/fine_grained_activation_offload.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from plimsoll.service.worker.recording.host_memory import on_host
from plimsoll.service.worker.recording.patches import replaced
from plimsoll.service.worker.training.foreign_code import names_given


@contextlib.contextmanager
def activations_on_host() -> Iterator[None]:
    """Let modules send what they keep to the host, by a manager that no other job has used."""
    from megatron.core.extensions import transformer_engine
    from megatron.core.pipeline_parallel import fine_grained_activation_offload as own

    handler = own.ChunkOffloadHandler
    own.PipelineOffloadManager.reset_instance()
    with (
        # What its modules read: that they are to offload, and of products in 8 bits what they are to keep.
        names_given(
            transformer_engine,
            cpu_offload=SimpleNamespace(CPUOffloadEnabled=False),
            set_save_original_input=lambda _module: None,
        ),
        names_given(own, print_offload_summary_table=lambda _bytes: None),
        replaced(handler, "tensor_push", _pushed),
        replaced(handler, "offload", _as_it_lies(handler.offload)),
        replaced(handler, "reload", _turned_back(handler.reload)),
    ):
        try:
            yield
        finally:
            own.PipelineOffloadManager.OFFLOAD_MGR = None


def _pushed(handler: Any, tensor: torch.Tensor) -> tuple[int, int]:
    """Keep a tensor in the current group, as `tensor_push` does but for its refusal of fake ones."""
    tag = handler._offloaded_group_index, handler._tensor_count_current_group
    handler._tensor_count_current_group += 1
    handler.offload_groups[tag[0] - 1].push_tensor(tag, tensor)
    return tag


def _as_it_lies(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return `offload` with a dense tensor sent as it lies in memory.

    What the stand-in for attention keeps is a view with other dimensions first, which the kernels do not make.
    """

    def offload(handler: Any, tensor: torch.Tensor, **asked: Any) -> Any:
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        with on_host():
            return method(handler, tensor.permute(order), **asked), order

    return offload


def _turned_back(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return `reload` with its tensor's dimensions as they were."""

    def reload(handler: Any, state: Any, non_blocking: bool | None = None) -> Any:
        sent, order = state
        back = method(handler, sent, non_blocking)
        return back.permute([order.index(dimension) for dimension in range(len(order))])

    return reload
