"""Which device a run takes place on, and what it is."""

from __future__ import annotations

import os
import platform
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from plimsoll.service.ground.errors import NoSuitableDevice
from plimsoll.service.worker.devices.accelerator_kinds import accelerator_kind

# Where a client may have a run: on the worker's accelerator if it is of the plan's kind and else on its CPU, or
# on one of the two for certain.
ANY, CPU, GPU = "any", "cpu", "gpu"
MEMORY_INFO = Path("/proc/meminfo")
CPU_INFO = Path("/proc/cpuinfo")
DRIVER_VERSION = Path("/sys/module/nvidia/version")
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A kind of device that this machine has `count` of, the first with the number `index`.

    `memory_bytes` is what one of them has; of a CPU what this process may take of
    the host's. `is_planned_kind` says that the plan is for this kind.
    """

    type: str
    name: str
    memory_bytes: int
    count: int
    is_planned_kind: bool
    index: int = 0

    @property
    def is_cpu(self) -> bool:
        """Return whether it is the host's processor."""
        return self.type == CPU

    def select(self) -> None:
        """Let what is allocated from now on lie on the first of them."""
        if not self.is_cpu:
            torch.cuda.set_device(self.index)

    def synchronize(self) -> None:
        """Wait until it has done all that it was given."""
        if not self.is_cpu:
            torch.cuda.synchronize()


def find_device(wanted: str, *, planned_gpu: str, any_gpu_kind: bool) -> Device:
    """Return the device for a run of a plan; raises NoSuitableDevice where this worker has none."""
    kind = accelerator_kind(planned_gpu)
    found = [torch.cuda.get_device_properties(index) for index in range(_accelerators())]
    names = sorted({properties.name for properties in found})
    suitable = [
        (index, each) for index, each in enumerate(found) if any_gpu_kind or accelerator_kind(each.name) == kind
    ]
    if suitable and wanted != CPU:
        index, first = suitable[0]
        # Ranks take devices by their number, so that all of them have to be alike.
        count = len(found) if len(names) == 1 else 1
        return Device(
            type="cuda",
            name=first.name,
            memory_bytes=first.total_memory,
            count=count,
            is_planned_kind=accelerator_kind(first.name) == kind,
            index=index,
        )
    if wanted == GPU:
        has = f"has {', '.join(names)}" if names else "has no accelerator"
        raise NoSuitableDevice(
            f"The plan is for {planned_gpu}, and this worker {has}. Ask for any_gpu_kind, or for the device cpu.",
            pointer="/device",
        )
    return Device(type=CPU, name=cpu_name(), memory_bytes=usable_host_bytes(), count=1, is_planned_kind=False)


def environment(device: Device) -> dict[str, Any]:
    """Return what a measurement depends on besides the plan: device, driver, versions, the allocator's settings."""
    import transformers

    settings = {name: os.environ[name] for name in ALLOCATOR_VARIABLES if name in os.environ}
    return {
        "device": device.name,
        "type": device.type,
        "is_planned_kind": device.is_planned_kind,
        "memory_bytes": device.memory_bytes,
        "driver": None if device.is_cpu else _driver_version(),
        "cuda": None if device.is_cpu else torch.version.cuda,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "allocator": "system" if device.is_cpu else torch.cuda.get_allocator_backend(),
        "allocator_settings": settings,
        "threads": torch.get_num_threads() if device.is_cpu else None,
    }


def cpu_name() -> str:
    """Return the processor's name as the system states it."""
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return f"cpu ({line.partition(':')[2].strip()})"
    return f"cpu ({platform.machine()})"


def usable_host_bytes() -> int:
    """Return what this process may take: what is free on the host, and no more than it is limited to."""
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS)]
    bounds = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    if MEMORY_INFO.exists():
        lines = MEMORY_INFO.read_text().splitlines()
        bounds += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    if not bounds:
        raise NoSuitableDevice("How much memory this worker's host has cannot be told.", pointer="/device")
    return min(bounds)


def _accelerators() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _driver_version() -> str | None:
    return DRIVER_VERSION.read_text().strip() if DRIVER_VERSION.exists() else None
