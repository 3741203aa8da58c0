"""Drives on which DeepSpeed's swapper waits for nothing: a handle that reads and writes no file.

DeepSpeed's own is compiled against libaio (`csrc/aio/py_lib`): it moves bytes between files and pinned buffers that its
caller gives it, and allocates none but those that it is asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from deepspeed.accelerator import get_accelerator


class TracedDrives:
    """A handle for asynchronous reads and writes, each of which is done as it is waited for."""

    def __init__(self, **_sizes: Any) -> None:
        self._pending = 0

    def async_pread(self, _buffer: torch.Tensor, _path: str, _offset: int) -> int:
        """Take note of a read; return that it was accepted."""
        self._pending += 1
        return 0

    def async_pwrite(self, _buffer: torch.Tensor, _path: str, _offset: int) -> int:
        """Take note of a write; return that it was accepted."""
        self._pending += 1
        return 0

    def wait(self) -> int:
        """Return how many reads and writes have ended since the last call."""
        ended, self._pending = self._pending, 0
        return ended

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor's memory is pinned."""
        pinned: bool = get_accelerator().is_pinned(tensor)
        return pinned

    def new_cpu_locked_tensor(self, elements: int, example: torch.Tensor) -> torch.Tensor:
        """Return new pinned memory of so many elements in an example's format."""
        pinned: torch.Tensor = get_accelerator().pin_empty(elements, dtype=example.dtype)
        return pinned
