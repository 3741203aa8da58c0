"""Peaks and breakdowns of hand-written ledgers."""

import pytest

from plimsoll.service.worker.recording.ledger import (
    EMPTY_PEAK,
    ITEM_OF_KIND,
    ITEMS,
    Kind,
    Ledger,
    rounded_bytes,
)


@pytest.mark.parametrize(("requested", "rounded"), [(0, 0), (1, 512), (512, 512), (513, 1024)])
def test_bytes_are_rounded_up_to_512(requested, rounded):
    assert rounded_bytes(requested) == rounded


def test_every_kind_belongs_to_an_item_of_the_plan():
    assert set(ITEM_OF_KIND) == set(Kind)
    assert set(ITEM_OF_KIND.values()) == {*ITEMS, "kv_cache"}


def test_the_peak_is_the_most_that_was_alive_at_once():
    # 512, 1536, 512, 1024: the second moment is the highest.
    ledger = Ledger()
    ledger.allocate(512, kind=Kind.PARAMETER, origin="weight")
    activation = ledger.allocate(1024, kind=Kind.FORWARD_ACTIVATION, origin="mm")
    ledger.release(activation)
    ledger.allocate(512, kind=Kind.LOGITS, origin="head")
    peak = ledger.peak()
    assert ledger.allocated_curve() == [512, 1536, 512, 1024]
    assert (peak.event, peak.allocated_bytes) == (1, 1536)
    assert peak.bytes_by_kind() == {"parameter": 512, "forward_activation": 1024}


def test_the_items_of_a_peak_add_up_to_it():
    ledger = Ledger()
    for kind in Kind:
        ledger.allocate(100, kind=kind, origin="one of each")
    peak = ledger.peak()
    assert sum(peak.bytes_by_item().values()) == peak.allocated_bytes == 512 * len(Kind)


def test_a_piece_counts_as_what_it_turned_out_to_be():
    ledger = Ledger()
    piece = ledger.allocate(512, kind=Kind.COMMUNICATION, origin="reduce_scatter")
    piece.kind = Kind.GRADIENT
    assert ledger.peak().bytes_by_item()["gradients"] == 512


def test_a_phase_begins_with_what_was_alive_before_it():
    ledger = Ledger()
    ledger.mark(0, "forward")
    first = ledger.allocate(2048, kind=Kind.FORWARD_ACTIVATION, origin="mm")
    ledger.mark(0, "backward")
    ledger.release(first)
    ledger.allocate(512, kind=Kind.GRADIENT, origin="mm")
    ranges = [(mark.phase, ledger.peak(start, end).allocated_bytes) for mark, start, end in ledger.phase_ranges()]
    assert ranges == [("forward", 2048), ("backward", 2048)]


def test_an_empty_ledger_peaks_at_nothing():
    assert Ledger().peak() == EMPTY_PEAK


def test_a_layer_that_is_at_work_already_is_not_marked_again():
    ledger = Ledger()
    ledger.mark(0, "forward")
    for layer in (0, 0, None, None, 0):
        ledger.mark_layer(layer)
    ledger.mark(0, "backward")
    ledger.mark_layer(0)
    assert [(mark.phase, mark.layer) for mark in ledger.layer_marks] == [(0, 0), (0, None), (0, 0), (1, 0)]


def test_what_is_recorded_so_far_keeps_its_layers():
    ledger = Ledger()
    ledger.mark(0, "forward")
    ledger.mark_layer(3)
    recorded = ledger.so_far()
    ledger.mark_layer(4)
    assert [mark.layer for mark in recorded.layer_marks] == [3]
