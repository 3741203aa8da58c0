"""Layouts, times and memory as the page words them, and what makes two layouts differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.famous_runs.asking import Answer, Planned
from plimsoll.planners.ground.figures import figure

GIB = 2**30
NOTHING = "–"
# Fields of a layout in the order of reading, by the words for them.
WORDS = {
    "data_parallel": "data",
    "tensor_parallel": "tensor",
    "pipeline_parallel": "pipeline",
    "virtual_pipeline": "virtual stages",
    "context_parallel": "context",
    "expert_parallel": "experts",
    "zero_stage": "ZeRO",
    "shard_group": "sharded over",
    "micro_batch_size": "micro-batch",
    "recompute": "recompute",
    "sequence_parallel": "sequence parallel",
    "offload": "offload",
    "activation_offload": "activation offload",
    "pipeline_layout": "stages",
}
# What goes without saying.
USUAL = {
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
    "virtual_pipeline": 1,
    "context_parallel": 1,
    "expert_parallel": 1,
    "sequence_parallel": False,
    "offload": "none",
    "activation_offload": False,
}


def seconds(value: float) -> str:
    """Return a step time in three figures."""
    return f"{figure(value)} s"


def percent(fraction: float) -> str:
    """Return a part in percent."""
    return f"{100 * fraction:.1f} %"


def gib(value: float) -> str:
    """Return bytes in GiB."""
    return f"{value / GIB:.1f}"


def layout(fields: Mapping[str, Any]) -> str:
    """Return a layout, or what a request says of it, without what goes without saying."""
    parts = list(_degrees(fields))
    parts += [
        f"{word} {_value(fields[name])}"
        for name, word in WORDS.items()
        if name in fields and name not in DEGREES and name not in SAID_APART and _is_worth_saying(name, fields)
    ]
    if fields.get("sequence_parallel"):
        parts.append("sequence parallel")
    if (fields.get("overlap") or {}).get("expert_parallel"):
        parts.append("exchange with experts overlapped")
    return ", ".join(parts)


DEGREES = ("data_parallel", "tensor_parallel", "pipeline_parallel", "virtual_pipeline", "context_parallel")
SAID_APART = ("sequence_parallel",)


def _degrees(fields: Mapping[str, Any]) -> Iterator[str]:
    named = [f"{WORDS[name]} {fields[name]}" for name in DEGREES if name in fields and _is_worth_saying(name, fields)]
    if named:
        yield " × ".join(named).replace(f" × {WORDS['virtual_pipeline']}", f" of {WORDS['virtual_pipeline']}")


def _is_worth_saying(name: str, fields: Mapping[str, Any]) -> bool:
    if name == "shard_group":
        return fields[name] not in (1, fields.get("data_parallel"))
    return bool(fields[name] != USUAL.get(name))


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return ", ".join(str(part) for parts in value.values() for part in (parts if _is_several(parts) else (parts,)))
    return str(value)


def _is_several(value: Any) -> bool:
    return isinstance(value, list | tuple)


def difference(as_ran: Answer, own: Answer, published_seconds: float | None) -> str:
    """Return in a sentence how the planner's own layout differs from the run's."""
    if not isinstance(own, Planned):
        return f"The planner has no layout of its own: {own.reasons[0]}"
    if not isinstance(as_ran, Planned):
        if published_seconds is None:
            return f"The planner's own layout is planned at {seconds(own.step_seconds)}."
        beside = _compared(own.step_seconds, published_seconds)
        return f"The planner's own layout is planned at {seconds(own.step_seconds)}, {beside} the published step."
    changes = [
        f"{word} {_value(own.layout[name])} instead of {_value(as_ran.layout[name])}"
        for name, word in WORDS.items()
        if name in own.layout and name in as_ran.layout and own.layout[name] != as_ran.layout[name]
        if name != "shard_group"
    ]
    if own.layout["framework"] != as_ran.layout["framework"]:
        changes.insert(0, f"{own.layout['framework']} instead of {as_ran.layout['framework']}")
    if not changes:
        return "The planner chooses the layout that ran."
    beside = _compared(own.step_seconds, as_ran.step_seconds)
    return f"By its plan the planner's own layout takes {beside} as long as the one that ran: {', '.join(changes)}."


def _compared(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f} times"
