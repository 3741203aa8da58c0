"""What a device's own counters say about the memory that a run took."""

from __future__ import annotations

import os
from typing import Any, Protocol

import torch

from plimsoll.service.worker.devices.device import Device
from plimsoll.service.worker.recording.allocator import replay
from plimsoll.service.worker.recording.ledger import Ledger

# Keys of torch.cuda.memory_stats(), as documented there.
STATISTICS = (
    "allocated_bytes.all.peak",
    "requested_bytes.all.peak",
    "reserved_bytes.all.peak",
    "inactive_split_bytes.all.peak",
    "num_alloc_retries",
    "num_ooms",
)


class Meter(Protocol):
    """Measures the peak between its start and its reading."""

    def start(self) -> None:
        """Forget what was before."""

    def reading(self, ledger: Ledger) -> dict[str, Any]:
        """Return `peak_bytes` (live tensors), `reserved_bytes`, and what else the device says."""


class LedgerMeter:
    """For a CPU, whose allocator counts nothing: every allocation of the run is in the ledger.

    Reserved bytes are what CUDA's caching allocator would have taken for the same.
    """

    def start(self) -> None:
        """Do nothing: the ledger begins when it is made."""

    def reading(self, ledger: Ledger) -> dict[str, Any]:
        """Return the ledger's peak, and the replay's."""
        return {
            "peak_bytes": ledger.peak().allocated_bytes,
            "reserved_bytes": replay(ledger.events).peak_reserved_bytes,
            "counted_by": "every storage that an operation made, rounded as CUDA's allocator rounds",
        }


class CudaMeter:
    """For a GPU: the caching allocator's own counters, and what the driver says of the card."""

    def start(self) -> None:
        """Give back what is cached, and forget the peaks."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def reading(self, ledger: Ledger) -> dict[str, Any]:
        """Return the allocator's peaks, what the ledger did not see of them, and NVML's figures."""
        torch.cuda.synchronize()
        statistics = torch.cuda.memory_stats()
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        peak_bytes = int(statistics["allocated_bytes.all.peak"])
        return {
            "peak_bytes": peak_bytes,
            "reserved_bytes": int(statistics["reserved_bytes.all.peak"]),
            "counted_by": "torch.cuda.memory_stats",
            "statistics": {name: int(statistics[name]) for name in STATISTICS if name in statistics},
            "untracked_bytes": peak_bytes - ledger.peak().allocated_bytes,
            "card": {"free_bytes": free_bytes, "total_bytes": total_bytes},
            "nvml": nvml_figures(torch.cuda.current_device()),
        }


def meter_of(device: Device) -> Meter:
    """Return how a device's memory is measured."""
    return LedgerMeter() if device.is_cpu else CudaMeter()


def nvml_figures(index: int) -> dict[str, int | None] | None:
    """Return what nvidia-smi would show: this process's bytes and the card's; None without nvidia-ml-py.

    The driver counts processes by their ids on the host, so that inside a container the
    process may not be found; its bytes are None then.
    """
    try:
        import pynvml
    except ModuleNotFoundError:
        return None
    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(index).uuid}".encode())
        own = [
            process.usedGpuMemory
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            if process.pid == os.getpid()
        ]
        return {
            "process_bytes": own[0] if own else None,
            "card_used_bytes": pynvml.nvmlDeviceGetMemoryInfo(handle).used,
        }
    finally:
        pynvml.nvmlShutdown()
