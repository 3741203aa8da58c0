"""Stored traces of random plans replayed through the model of the caching allocator: what it reserves, and needs.

The larger pieces alone are stored, and no streams, so that one pool is replayed: in fixed segments, in expandable ones,
and in the least capacity in which an allocator that gives back what is free never fails.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.random_plans.files import SETS
from benchmarks.random_plans.ledgers import StoredEvent, unpacked
from plimsoll.service.worker.recording.allocator import CachingAllocator, OutOfMemory

# Halvings of what lies between allocated and reserved bytes: to a hundredth of it.
HALVINGS = 7
# Longer ledgers take minutes and are as their shorter kin.
MOST_EVENTS = 30_000


class Surplus(NamedTuple):
    """A replayed trace's reserved bytes over its allocated ones."""

    framework: str
    fixed: float
    expandable: float
    needed: float


def surpluses() -> Iterator[Surplus]:
    """Yield every trace of the fitted set, its first stage."""
    stored = SETS["fitted"]
    frameworks = {plan.number: plan.layout.framework for plan in stored.plans()}
    for line in stored.lines():
        if "failed" in line:
            continue
        events = [event for event in unpacked(line["stages"][0]["ledger"]) if not event.piece.on_host]
        if len(events) <= MOST_EVENTS:
            yield surplus(frameworks[line["number"]], events)


def surplus(framework: str, events: Sequence[StoredEvent]) -> Surplus:
    """Return what each way reserves of so many events."""
    fixed = _replayed(events, expandable_segments=False)
    allocated = fixed.peak_allocated_bytes
    return Surplus(
        framework=framework,
        fixed=fixed.peak_reserved_bytes / allocated,
        expandable=_replayed(events, expandable_segments=True).peak_reserved_bytes / allocated,
        needed=_least_capacity(events, allocated, fixed.peak_reserved_bytes) / allocated,
    )


def lines() -> Iterator[str]:
    """Yield the median of every stack."""
    found = sorted(surpluses())
    yield f"{'reserved over allocated, medians':34}{'traces':>8}{'fixed':>10}{'expandable':>12}{'needed':>10}"
    for framework in dict.fromkeys(each.framework for each in found):
        own = [each for each in found if each.framework == framework]
        fixed = statistics.median(each.fixed for each in own)
        expandable = statistics.median(each.expandable for each in own)
        needed = statistics.median(each.needed for each in own)
        yield f"{framework:34}{len(own):8}{fixed:10.3f}{expandable:12.3f}{needed:10.3f}"


def _least_capacity(events: Sequence[StoredEvent], allocated: int, reserved: int) -> int:
    low, high = allocated, reserved
    for _ in range(HALVINGS):
        middle = (low + high) // 2
        try:
            _replayed(events, expandable_segments=False, capacity_bytes=middle)
        except OutOfMemory:
            low = middle
        else:
            high = middle
    return high


def _replayed(
    events: Sequence[StoredEvent], *, expandable_segments: bool, capacity_bytes: int | None = None
) -> CachingAllocator:
    allocator = CachingAllocator(expandable_segments=expandable_segments, capacity_bytes=capacity_bytes)
    for event in events:
        if event.is_release:
            allocator.release(event.piece.number)
        else:
            allocator.allocate(event.piece.number, event.piece.requested_bytes)
    return allocator
