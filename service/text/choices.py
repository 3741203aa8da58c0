"""What a plan was chosen from, as text: the entries of a fleet, and layouts the client named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.planners.ground.figures import figure
from plimsoll.service.text.tables import gib, seconds_text, table, titled, wrapped

DOLLAR_DIGITS = 4


def choices_text(body: Mapping[str, Any]) -> list[str]:
    """Return the sections on the fleet and on named layouts, where a plan's answer has any."""
    fleet, comparisons = body.get("fleet", ()), body.get("comparisons", ())
    sections = []
    if fleet:
        header = ("GPUs", "peak", "step", "per million tokens", "verdict")
        refusals = [
            wrapped(f"  - {entry['gpu']}: {entry['refusal']}", indent="    ") for entry in fleet if entry["refusal"]
        ]
        rows = [_entry(entry) for entry in fleet]
        sections.append(titled("Fleet, best first", table(header, rows), *refusals))
    if comparisons:
        lines = [line for number, one in enumerate(comparisons) for line in _comparison(number, one)]
        sections.append(titled("Why not these layouts", "\n".join(lines)))
    return sections


def serving_choices_text(body: Mapping[str, Any]) -> list[str]:
    """Return the section on the fleet of a serving plan, where it has one."""
    fleet = body.get("fleet", ())
    if not fleet:
        return []
    refusals = [
        wrapped(f"  - {entry['gpu']}: {entry['refusal']}", indent="    ") for entry in fleet if entry["refusal"]
    ]
    header = ("GPUs", "formats", "per token", "tokens/s", "per million tokens", "verdict")
    return [titled("Fleet, best first", table(header, [_serving_entry(entry) for entry in fleet]), *refusals)]


def _serving_entry(entry: Mapping[str, Any]) -> tuple[str, ...]:
    dollars, rate = entry["cost_usd_per_million_output_tokens"], entry["output_tokens_per_second"]
    return (
        entry["gpu"] if entry["gpus"] is None else f"{entry['gpus']} × {entry['gpu']}",
        "" if entry["weights"] is None else f"{entry['weights']}/{entry['kv_cache']}",
        seconds_text(entry["tpot_seconds"]),
        "" if rate is None else f"{rate:,.0f}",
        "" if dollars is None else f"${figure(dollars, DOLLAR_DIGITS)}",
        "refused" if entry["refusal"] else entry["verdict"],
    )


def _entry(entry: Mapping[str, Any]) -> tuple[str, ...]:
    dollars = entry["usd_per_token"]
    return (
        _gpus_text(entry),
        gib(entry["peak_bytes"]),
        seconds_text(entry["step_seconds"]),
        "" if dollars is None else f"${figure(1e6 * dollars, DOLLAR_DIGITS)}",
        "refused" if entry["refusal"] else entry["verdict"],
    )


def _gpus_text(entry: Mapping[str, Any]) -> str:
    """Return an entry's GPUs, marked where nobody timed a run on them."""
    # Earlier versions did not say so.
    mark = ", no timed run" if entry.get("timed_runs") == "none_on_gpu" else ""
    counted = entry["gpu"] if entry["gpus"] is None else f"{entry['gpus']} × {entry['gpu']}"
    return f"{counted}{mark}"


def _comparison(number: int, one: Mapping[str, Any]) -> list[str]:
    layout = one["layout"]
    what = f"compare/{number}: {one['outcome'].replace('_', ' ')}"
    if layout is not None:
        degrees = f"data {layout['data_parallel']} × tensor {layout['tensor_parallel']}"
        degrees += f" × pipeline {layout['pipeline_parallel']} × context {layout['context_parallel']}"
        what += f" ({layout['framework']}, {degrees}, {gib(one['peak_bytes'])}, {seconds_text(one['step_seconds'])})"
    reasons = [wrapped(f"    - {reason['detail']}", indent="      ") for reason in one["reasons"]]
    return [wrapped(f"  {what}", indent="    "), *reasons]
