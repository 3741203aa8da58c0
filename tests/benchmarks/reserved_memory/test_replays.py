"""Stored traces replayed: a few pieces by hand."""

import pytest

from benchmarks.random_plans.ledgers import StoredEvent, StoredPiece
from benchmarks.reserved_memory.replays import surplus
from plimsoll.planners.ground.units import MIB


def events(*changes):
    """Return events of pieces of so many MiB, numbered by their place; below 0 the piece of that number goes."""
    found, live = [], {}
    for number, change in enumerate(changes):
        piece = live.pop(-change) if change < 0 else live.setdefault(number, stored(number, change))
        found.append(StoredEvent(piece=piece, is_release=change < 0, step=0, phase="", allocated_bytes=0))
    return found


def stored(number, mib):
    return StoredPiece(number=number, kind="", origin="", requested_bytes=mib * MIB, on_host=False)


def test_a_free_segment_too_small_for_the_next_piece_is_reserved_and_not_needed():
    # 40 MiB stay, 60 come and go, 80 find no room in the 60: 180 reserved of 120 allocated. Short of memory, the 60 are
    # given back; in expandable segments the 80 grow out of them.
    found = surplus("any", events(40, 60, -1, 80))
    assert found.fixed == pytest.approx(180 / 120)
    assert found.expandable == pytest.approx(1.0)
    assert found.needed == pytest.approx(1.0, abs=0.01)


def test_a_segment_of_which_a_part_is_in_use_cannot_be_given_back():
    # Of a segment of 100 that came free 30 are taken again and stay; 90 find 70 behind them.
    found = surplus("any", events(20, 100, -1, 30, 90))
    assert found.fixed == pytest.approx((20 + 100 + 90) / (20 + 30 + 90))
    assert found.needed == pytest.approx(found.fixed, abs=0.01)
