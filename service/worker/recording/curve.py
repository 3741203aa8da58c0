"""A trace made small enough to send: the curve of allocated bytes, and who held the peak."""

from __future__ import annotations

from plimsoll.service.worker.recording.ledger import Ledger, Peak

MOST_POINTS = 512
MOST_OWNERS = 12


def thinned_curve(curve: list[int], *, most_points: int = MOST_POINTS) -> list[dict[str, int]]:
    """Return at most so many points of a curve, among them its highest.

    The curve is cut into equal runs of events, and each run gives its highest
    point, so that no spike is lost.
    """
    runs = min(len(curve), most_points)
    points = []
    for run in range(runs):
        start, end = run * len(curve) // runs, (run + 1) * len(curve) // runs
        event = max(range(start, end), key=curve.__getitem__)
        points.append({"event": event, "allocated_bytes": curve[event]})
    return points


def largest_owners(peak: Peak, *, most: int = MOST_OWNERS) -> list[dict[str, object]]:
    """Return what was alive at the peak, like pieces together, largest first."""
    totals: dict[tuple[str, str], list[int]] = {}
    for piece in peak.live:
        total = totals.setdefault((piece.kind.value, piece.origin), [0, 0])
        total[0] += piece.allocated_bytes
        total[1] += 1
    ranked = sorted(totals.items(), key=lambda entry: (-entry[1][0], entry[0]))
    return [
        {"kind": kind, "name": name, "bytes": held_bytes, "count": count}
        for (kind, name), (held_bytes, count) in ranked[:most]
    ]


def phase_peaks(ledger: Ledger) -> list[dict[str, object]]:
    """Return the peak of each phase of each step, with its breakdown."""
    peaks: list[dict[str, object]] = []
    for mark, first_event, end_event in ledger.phase_ranges():
        peak = ledger.peak(first_event, end_event)
        peaks.append(
            {
                "step": mark.step,
                "phase": mark.phase,
                "peak_bytes": peak.allocated_bytes,
                "items": peak.bytes_by_item(),
                "kinds": peak.bytes_by_kind(),
            }
        )
    return peaks


def phase_at(ledger: Ledger, event: int) -> tuple[int, str]:
    """Return the step and phase in which an event lies."""
    step, phase = 0, ""
    for mark in ledger.marks:
        if mark.first_event > event:
            break
        step, phase = mark.step, mark.phase
    return step, phase
