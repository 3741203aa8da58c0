"""What a plan needs of one GPU, as text: its budget, what fills it, and the moments outside the steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from plimsoll.service.text.tables import gib, pairs, table, titled, wrapped


def memory_text(memory: Mapping[str, Any]) -> str:
    """Return the section on the memory of one GPU."""
    items = table(("item", "size", "share"), shares(memory["items"], gib))
    return titled("Memory of one GPU", _budget(memory), "", items, *_readings(memory))


def spikes_text(memory: Mapping[str, Any]) -> str:
    """Return the section on loading, checkpoints and evaluation; nothing where a plan names none."""
    spikes: Sequence[Mapping[str, Any]] = memory.get("spikes", ())
    if not spikes:
        return ""
    rows = [(spike["name"], gib(spike["device_bytes"]), gib(spike["host_bytes"])) for spike in spikes]
    reasons = [wrapped(f"  - {spike['name']}: {spike['reason']}", indent="    ") for spike in spikes]
    header = ("moment", "live on the GPU", "on the host for each GPU")
    return titled("Moments outside the steps", table(header, rows), *reasons)


def shares(parts: Mapping[str, float], shown: Callable[[float], str]) -> list[tuple[str, str, str]]:
    """Return each part that is there, its amount and its share of the sum."""
    total = sum(parts.values())
    return [
        (name.replace("_", " "), shown(value), f"{100 * value / total:.1f} %") for name, value in parts.items() if value
    ]


def ranged(values: Mapping[str, Any], low: str, high: str, shown: Callable[[float], str]) -> str:
    """Return the two ends of an estimate in brackets; nothing where it was made without them."""
    return "" if values.get(low) is None else f" ({shown(values[low])} to {shown(values[high])})"


def _node_host(memory: Mapping[str, Any]) -> str | None:
    """Return what the fullest node needs and has; None where it needs nothing, or the plan does not say."""
    needed, sure, most = (memory.get(f"node_host_{name}") for name in ("bytes", "sure_bytes", "limit_bytes"))
    if not needed:
        return None
    there = gib(most) if sure == most else f"{gib(sure)} to {gib(most)}"
    return f"{gib(needed)} of {there}"


def _readings(memory: Mapping[str, Any]) -> list[str]:
    """Return the peak as each counter shows it; nothing where a plan was made without them."""
    read: Sequence[Mapping[str, Any]] = memory.get("readings", ())
    rows = [
        (
            reading["name"].replace("_", " "),
            gib(reading["size_bytes"]),
            f"{gib(reading['low_bytes'])} to {gib(reading['high_bytes'])}",
        )
        for reading in read
    ]
    return ["", table(("reads as", "size", "range"), rows)] if rows else []


def _budget(memory: Mapping[str, Any]) -> str:
    bounds = ranged(memory, "peak_low_bytes", "peak_high_bytes", gib)
    return pairs(
        (
            ("peak", f"{gib(memory['peak_bytes'])}{bounds}"),
            ("limit", gib(memory["limit_bytes"])),
            ("margin", gib(memory.get("margin_bytes"))),
            ("worst moment", memory.get("phase")),
            ("host memory", gib(memory.get("host_bytes")) if memory.get("host_bytes") else None),
            ("host memory of a node", _node_host(memory)),
            ("on NVMe", gib(memory.get("nvme_bytes")) if memory.get("nvme_bytes") else None),
        )
    )
