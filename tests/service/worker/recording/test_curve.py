"""The curve and the owners of the peak."""

from plimsoll.service.worker.recording.curve import largest_owners, phase_at, phase_peaks, thinned_curve
from plimsoll.service.worker.recording.ledger import Kind, Ledger


def test_a_short_curve_is_sent_whole():
    assert thinned_curve([5, 7]) == [{"event": 0, "allocated_bytes": 5}, {"event": 1, "allocated_bytes": 7}]


def test_a_long_curve_keeps_its_peak_and_at_most_512_points():
    curve = [0] * 10_000
    curve[7_777] = 99
    points = thinned_curve(curve)
    assert len(points) == 512
    assert {"event": 7_777, "allocated_bytes": 99} in points


def test_an_empty_curve_has_no_points():
    assert thinned_curve([]) == []


def test_owners_of_the_peak_come_largest_first_and_like_ones_together():
    ledger = Ledger()
    ledger.allocate(512, kind=Kind.FORWARD_ACTIVATION, origin="aten::mm")
    ledger.allocate(512, kind=Kind.FORWARD_ACTIVATION, origin="aten::mm")
    ledger.allocate(4096, kind=Kind.LOGITS, origin="aten::_log_softmax")
    assert largest_owners(ledger.peak()) == [
        {"kind": "logits", "name": "aten::_log_softmax", "bytes": 4096, "count": 1},
        {"kind": "forward_activation", "name": "aten::mm", "bytes": 1024, "count": 2},
    ]


def test_an_event_lies_in_the_last_phase_begun_before_it():
    ledger = Ledger()
    ledger.mark(0, "forward")
    ledger.allocate(1, kind=Kind.INPUT, origin="ids")
    ledger.mark(1, "backward")
    ledger.allocate(1, kind=Kind.INPUT, origin="ids")
    assert [phase_at(ledger, event) for event in (0, 1)] == [(0, "forward"), (1, "backward")]


def test_each_phase_has_a_peak():
    ledger = Ledger()
    ledger.mark(0, "forward")
    ledger.allocate(512, kind=Kind.INPUT, origin="ids")
    (peak,) = phase_peaks(ledger)
    assert (peak["step"], peak["phase"], peak["peak_bytes"]) == (0, "forward", 512)
