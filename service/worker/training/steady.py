"""Steps that are run until one leaves the memory as it found it."""

from __future__ import annotations

from collections.abc import Callable

from plimsoll.service.worker.recording.tracker import StorageTracker
from plimsoll.service.worker.tasks import Report

# The first step makes the optimizer's states, and the second is the first with
# them from the start. Where it leaves the memory as it found it, the third would
# repeat it, operation by operation, and is left out.
MOST_TRACED_STEPS = 3
FIRST_STEADY_STEP = 1
STATES = "states"
# Building, the steps, and the replay: what progress counts.
TRACE_STAGES = MOST_TRACED_STEPS + 2


def run_until_steady(
    run: Callable[[int], None], tracker: StorageTracker, report: Report, *, stops_when_steady: bool = True
) -> None:
    """Run steps, by their number, until the memory is steady, or all."""
    for step in range(MOST_TRACED_STEPS):
        report(step + 1, TRACE_STAGES, "stage", f"step {step + 1} of {MOST_TRACED_STEPS}")
        found = tracker.live_bytes()
        run(step)
        if stops_when_steady and step >= FIRST_STEADY_STEP and tracker.live_bytes() == found:
            break
