"""The accelerator that DeepSpeed sees in a trace: a second CPU, apart from the host's memory."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any

import torch
from deepspeed.accelerator import DeepSpeedAccelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

from plimsoll.service.worker.recording.host_memory import DEVICE


class TracedAccelerator(CPU_Accelerator):  # type: ignore[misc]
    """A synchronous device with room for whatever is asked, whose host pins memory by copying it.

    DeepSpeed's own accelerator of a CPU calls the host's memory its device's, and pins nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        # By address: one that is dead may have been followed by another.
        self._pinned_storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def device_name(self, _device_index: int | None = None) -> str:
        """Return the device's name."""
        return str(DEVICE)

    def current_device_name(self) -> str:
        """Return the device's name."""
        return str(DEVICE)

    def is_fp16_supported(self) -> bool:
        """Return that it computes in fp16, whichever processor the worker has."""
        return True

    def available_memory(self, _device_index: int | None = None) -> int:
        """Return that there is room: a plan is asked what it needs, on whichever worker."""
        return sys.maxsize

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies on the device."""
        return tensor.device == DEVICE

    # What every accelerator but a CPU's inherits.
    pin_memory = DeepSpeedAccelerator.pin_memory

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a pinned copy of a tensor, or the tensor itself where it is pinned."""
        return tensor if self._torch_is_pinned(tensor) else self._pinned(tensor.clone())

    def _torch_empty_pinned(self, tensor: torch.Tensor, shape: Any) -> torch.Tensor:
        """Return new pinned memory in a tensor's format."""
        return self._pinned(tensor.new_empty(shape))

    def _torch_is_pinned(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies in memory that was pinned."""
        reference = self._pinned_storages.get(tensor.untyped_storage()._cdata)
        return reference is not None and reference() is not None

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self._pinned_storages[storage._cdata] = weakref.ref(storage)
        return tensor

    @property
    def ByteTensor(self) -> Any:  # noqa: N802 - DeepSpeed's name
        """Return what makes a tensor of bytes on the device."""
        return functools.partial(_on_device, torch.uint8)

    @property
    def FloatTensor(self) -> Any:  # noqa: N802 - DeepSpeed's name
        """Return what makes a tensor of fp32 on the device."""
        return functools.partial(_on_device, torch.float32)


def _on_device(dtype: torch.dtype, values: Any) -> torch.Tensor:
    """Return a tensor for so many values on the device; torch makes a fake one of given values on the host."""
    return torch.empty(len(values), dtype=dtype, device=DEVICE)
