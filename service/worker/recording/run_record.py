"""What is known of a run for real, and of the allocation that ended it where memory ran out."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from plimsoll.service.worker.processes.child_main import clean_text
from plimsoll.service.worker.recording.ledger import Ledger
from plimsoll.service.worker.recording.tracker import StorageTracker

# "Tried to allocate 2.00 GiB" of torch.OutOfMemoryError, "you tried to allocate 123 bytes" of the CPU's allocator.
WANTED_SIZE = re.compile(r"ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
UNIT_BYTES = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(slots=True, kw_only=True)
class Record:
    """What is known of a run while it lasts; read when it is over, however it ended."""

    ledger: Ledger = field(default_factory=Ledger)
    tracker: StorageTracker | None = None
    phases: dict[str, float] = field(default_factory=dict)
    out_of_memory: dict[str, Any] | None = None


def described_failure(error: BaseException, record: Record) -> dict[str, Any]:
    """Return which allocation failed, where in the step, and what was held then."""
    text = clean_text(str(error))
    size = WANTED_SIZE.search(text)
    ledger = record.ledger
    curve = ledger.allocated_curve()
    operation = record.tracker.operation if record.tracker else None
    return {
        "wanted_bytes": round(float(size[1]) * UNIT_BYTES[size[2]]) if size else None,
        "allocated_bytes": curve[-1] if curve else 0,
        "peak_bytes_so_far": max(curve, default=0),
        "step": ledger.marks[-1].step if ledger.marks else None,
        "phase": ledger.marks[-1].phase if ledger.marks else "building",
        "operation": None if operation is None else str(operation),
        "message": text.partition("\n")[0],
    }
