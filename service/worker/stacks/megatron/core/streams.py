"""CUDA's streams, events and ranges for a trace on the CPU: which stream is current is known, and nothing waits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from plimsoll.service.worker.recording.patches import replaced


class _Event:
    """An event that has always been: operations run in the order in which they are called."""

    def record(self, _stream: Any = None) -> None:
        """Do nothing."""

    def wait(self, _stream: Any = None) -> None:
        """Do nothing."""


class _Entered:
    """A stream that is current in a block, and in another one again, as CUDA's may be."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._blocks: list[Any] = []

    def __enter__(self) -> None:
        self._blocks.append(torch.cpu.stream(self._stream))
        self._blocks[-1].__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._blocks.pop().__exit__(*raised)


def _new_stream(_device: Any = None, **_options: Any) -> Any:
    return torch.cpu.Stream()


def _nothing(*_args: Any) -> None:
    """Do nothing."""


@contextlib.contextmanager
def streams_of_the_trace() -> Iterator[None]:
    """Let code that names CUDA's streams have those that the trace numbers, and leave none of them behind."""
    from megatron.core.pipeline_parallel import utils

    first = torch.cpu.current_stream()
    with (
        replaced(torch.cuda, "Stream", _new_stream),
        replaced(torch.cuda, "Event", _Event),
        replaced(torch.cuda, "stream", _Entered),
        replaced(torch.cuda, "current_stream", lambda *_device: torch.cpu.current_stream()),
        replaced(torch.cuda, "default_stream", lambda *_device: first),
        replaced(torch.cuda.nvtx, "range_push", _nothing),
        replaced(torch.cuda.nvtx, "range_pop", _nothing),
        replaced(utils, "_COMP_STREAM", None),
        replaced(utils, "_COMM_STREAM", None),
    ):
        # The method belongs to the base class: hide it here, and uncover it after.
        torch.Tensor.record_stream = _nothing  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            del torch.Tensor.record_stream
