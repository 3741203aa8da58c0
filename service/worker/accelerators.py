"""What accelerators this machine has, asked of torch in a child process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.worker.accelerator_kinds import accelerator_kind
from service.worker.tasks import Report


def run(_request: Mapping[str, Any], _report: Report) -> dict[str, Any]:
    """Return {"accelerators": [{"name", "kind", "memory_bytes"}]}, empty without torch or a device."""
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
