from __future__ import annotations

import json

from benchmarks.random_plans.ledgers import LEAST_BYTES, live_at_peak, packed, unpacked
from plimsoll.service.worker.recording.ledger import Kind, Ledger

MIB = 2**20


def a_ledger() -> Ledger:
    """Return a ledger of two steps: a weight that stays, activations that come and go, and many small pieces."""
    ledger = Ledger()
    ledger.mark(0, "states")
    ledger.allocate(40 * MIB, kind=Kind.PARAMETER, origin="model.weight")
    for step in range(2):
        ledger.mark(step, "forward")
        small = [ledger.allocate(600, kind=Kind.FORWARD_ACTIVATION, origin="aten::mean") for _ in range(3)]
        kept = ledger.allocate(8 * MIB + 1, kind=Kind.FORWARD_ACTIVATION, origin="aten::mm")
        sent = ledger.allocate(5 * MIB, kind=Kind.FORWARD_ACTIVATION, origin="aten::clone", on_host=True)
        ledger.mark(step, "backward")
        gradient = ledger.allocate(16 * MIB, kind=Kind.GRADIENT, origin="gradient")
        ledger.release(kept)
        for piece in (*small, sent, gradient):
            ledger.release(piece)
    return ledger


def test_a_ledger_is_the_same_once_stored_and_read():
    ledger = a_ledger()
    curve = ledger.allocated_curve()
    listed = [(index, event) for index, event in enumerate(ledger.events) if event.piece.requested_bytes >= LEAST_BYTES]
    read = list(unpacked(json.loads(json.dumps(packed(ledger)))))
    assert [
        (event.is_release, event.piece.kind, event.piece.origin, event.piece.requested_bytes) for event in read
    ] == [
        (event.is_release, event.piece.kind.value, event.piece.origin, event.piece.requested_bytes)
        for _, event in listed
    ]
    assert [event.allocated_bytes for event in read] == [curve[index] for index, _ in listed]


def test_a_release_frees_the_piece_that_was_allocated():
    ledger = Ledger()
    first, second = (ledger.allocate(4 * MIB, kind=Kind.GRADIENT, origin=name) for name in ("first", "second"))
    ledger.release(first)
    ledger.release(second)
    assert [event.piece.origin for event in unpacked(packed(ledger))] == ["first", "second", "first", "second"]


def test_events_know_their_step_and_phase():
    phases = [(event.step, event.phase) for event in unpacked(packed(a_ledger()))]
    assert phases[0] == (0, "states")
    assert phases[1] == (0, "forward")
    assert phases[-1] == (1, "backward")


def test_pieces_below_a_mebibyte_are_left_out_and_counted_in_the_totals():
    stored = packed(a_ledger())
    assert all(requested_bytes >= LEAST_BYTES for _, _, requested_bytes, _ in stored["pieces"])
    # Of the first step's forward pass: three small pieces of 600 bytes, 1,024 as the allocator rounds.
    kept = next(event for event in unpacked(stored) if event.piece.origin == "aten::mm")
    assert kept.allocated_bytes == 40 * MIB + 3 * 1024 + 8 * MIB + 512


def test_what_lives_at_the_peak_is_told_without_the_host():
    assert [piece.origin for piece in live_at_peak(packed(a_ledger()))] == ["model.weight", "aten::mm", "gradient"]


def test_pieces_below_a_500th_of_the_peak_are_left_out():
    ledger = Ledger()
    ledger.allocate(1000 * MIB, kind=Kind.PARAMETER, origin="large")
    ledger.allocate(2 * MIB - 1, kind=Kind.PARAMETER, origin="small")
    ledger.allocate(3 * MIB, kind=Kind.PARAMETER, origin="larger")
    assert [event.piece.origin for event in unpacked(packed(ledger))] == ["large", "larger"]
