"""What a plan predicts of the stage that a proof found the fullest, which need not be the plan's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.service.worker.recording.ledger import ITEMS

# What a process holds beside the allocator's live tensors.
OUTSIDE_TENSORS = ("runtime", "fragmentation")


def predicted_of_stage(memory: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the live bytes of a plan's stage, by item too; without its items those of the plan's fullest stage.

    A plan's fullest stage is the one that needs the most with what a process holds outside its tensors, and a proof's
    the one with the most of these: of stages as full as each other not always the same.
    """
    found = (stage.get("items") for stage in memory.get("stages", ()) if stage["stage"] == number)
    items = next(found, None)
    if items is None:
        return {"peak_bytes": int(memory["allocated_bytes"]), "items": _items(memory["items"])}
    live = sum(int(size) for name, size in items.items() if name not in OUTSIDE_TENSORS)
    return {"peak_bytes": live, "items": _items(items)}


def _items(items: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(items.get(name, 0)) for name in ITEMS}
