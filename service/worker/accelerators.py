"""What accelerators this machine has, asked of torch in a child process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.worker.tasks import Report

# Words in the names that drivers give which say nothing about the kind.
VENDOR_WORDS = frozenset({"nvidia", "amd", "tesla", "quadro", "geforce", "instinct", "graphics"})
# "RTX 4090" and "GTX 1080": the family's name says nothing without the number.
FAMILY_WORDS = frozenset({"rtx", "gtx", "titan"})


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


def accelerator_kind(name: str) -> str:
    """Return the short kind in a driver's name for a device: "NVIDIA H100 80GB HBM3" is "h100"."""
    words = [word for word in name.lower().replace("-", " ").split() if word not in VENDOR_WORDS]
    if not words:
        return "unknown"
    if words[0] in FAMILY_WORDS:
        return "-".join(words[:2])
    return words[0]
