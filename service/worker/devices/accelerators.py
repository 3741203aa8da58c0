"""What accelerators this machine has, asked of torch in a child process."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plimsoll.service.worker.devices.accelerator_kinds import accelerator_kind
from plimsoll.service.worker.tasks import Report

CUDA_DRIVER = "libcuda.so.1"
"""What CUDA's runtime loads before it can ask for a device: it comes with the driver and with nothing else."""
ROCM_DEVICE = Path("/dev/kfd")
"""What ROCm's runtime opens: https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html"""


def run(_request: Mapping[str, Any], _report: Report) -> dict[str, Any]:
    """Return {"accelerators": [{"name", "kind", "memory_bytes"}]}, empty without a driver, torch or a device."""
    if not has_driver():
        # Loading torch to hear the same takes seconds, at every start of a worker.
        return {"accelerators": [], "reason": "there is no driver of NVIDIA's or AMD's"}
    return seen_by_torch()


def seen_by_torch() -> dict[str, Any]:
    """Return what `run` does, of a machine with a driver."""
    try:
        import torch
    except ModuleNotFoundError:
        return {"accelerators": [], "reason": "torch is not installed"}
    if not torch.cuda.is_available():
        return {"accelerators": [], "reason": "torch sees no CUDA device"}
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "accelerators": [
            {"name": each.name, "kind": accelerator_kind(each.name), "memory_bytes": each.total_memory}
            for each in properties
        ]
    }


def has_driver(cuda: str = CUDA_DRIVER, rocm: Path = ROCM_DEVICE) -> bool:
    """Return whether a driver is installed without which torch sees no device."""
    if rocm.exists():
        return True
    try:
        ctypes.CDLL(cuda)
    except OSError:
        return False
    return True
