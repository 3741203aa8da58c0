"""The comparison as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

GIB = 1 << 30
HEAD = "| Plan | Planned GiB | Traced | Measured | Planned to measured | Reserved: traced | measured | Card |\n"


def table(rows: Sequence[Mapping[str, Any]], gpu: str) -> str:
    """Return a line for each plan: allocated peaks planned, traced and measured, and what the card had in use."""
    devices = sorted({result["device"] for row in rows if (result := row.get("device")) and "device" in result})
    lines = [_line(row) for row in rows]
    ran = f"Planned for {gpu}; measured on {', '.join(devices) or 'nothing'}.\n\n"
    return ran + HEAD + "|---|---|---|---|---|---|---|---|\n" + "".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    if "refusal" in row:
        return f"| {row['name']} | {row['refusal']} | | | | | | |\n"
    traced, ran = row.get("trace", {}), row.get("device", {})
    planned = traced.get("predicted") or ran.get("predicted") or {}
    cells = (
        row["name"],
        _gib(planned.get("peak_bytes")),
        _peak(traced),
        _peak(ran),
        _percent(ran.get("relative_error")),
        _gib(traced.get("measured", {}).get("reserved_bytes")),
        _gib(ran.get("measured", {}).get("reserved_bytes")),
        _gib(_card_bytes(ran)),
    )
    return f"| {' | '.join(cells)} |\n"


def _peak(result: Mapping[str, Any]) -> str:
    if "refusal" in result:
        return str(result["refusal"])
    peak = _gib(result.get("measured", {}).get("peak_bytes"))
    return f"{peak}, then out of memory" if result.get("out_of_memory") else peak


def _card_bytes(result: Mapping[str, Any]) -> int | None:
    """Return what the driver said was in use: by this process, or where it does not tell, by all."""
    figures = result.get("measured", {}).get("nvml") or {}
    used: int | None = figures.get("process_bytes") or figures.get("card_used_bytes")
    return used


def _gib(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / GIB:.3f}"


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{100 * fraction:+.2f} %"
