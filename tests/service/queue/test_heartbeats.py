"""A worker is silent when its heartbeat stands still, whatever time is written in it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from plimsoll.service.queue.heartbeats import Heartbeats

SILENT_AFTER_SECONDS = 6.0
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def looks(*beats: tuple[float, datetime]) -> list[tuple[int, ...]]:
    """Return who is silent at each of these moments, with this heartbeat of worker 1."""
    clock = Clock()
    heartbeats = Heartbeats(silent_after_seconds=SILENT_AFTER_SECONDS, clock=clock)
    found = []
    for moment, beat in beats:
        clock.now = moment
        found.append(heartbeats.silent({1: beat}))
    return found


def test_a_heartbeat_that_stands_still_is_that_of_a_silent_worker():
    assert looks((0, NOON), (2, NOON), (4, NOON), (5.9, NOON), (6, NOON)) == [(), (), (), (), (1,)]


@pytest.mark.parametrize("jump", [timedelta(hours=-5), timedelta(hours=5), timedelta(days=400)])
def test_a_heartbeat_that_changes_is_that_of_a_living_one_whatever_it_says(jump: timedelta):
    assert looks((0, NOON), (3, NOON), (5, NOON + jump), (8, NOON + jump), (10, NOON + 2 * jump)) == [()] * 5


def test_a_long_pause_between_two_looks_makes_nobody_silent_and_the_next_looks_do():
    # Of 100 s three count, half of six.
    assert looks((0, NOON), (100, NOON), (102, NOON), (103, NOON)) == [(), (), (), (1,)]


def test_workers_are_told_apart():
    clock = Clock()
    heartbeats = Heartbeats(silent_after_seconds=SILENT_AFTER_SECONDS, clock=clock)
    for moment in (0, 3, 6):
        clock.now = moment
        silent = heartbeats.silent({1: NOON, 2: NOON + timedelta(seconds=moment)})
    assert silent == (1,)


def test_what_was_forgotten_has_to_be_silent_from_then_on():
    clock = Clock()
    heartbeats = Heartbeats(silent_after_seconds=SILENT_AFTER_SECONDS, clock=clock)
    heartbeats.silent({1: NOON})
    clock.now = 3
    heartbeats.silent({1: NOON})
    heartbeats.forget()
    clock.now = 6
    assert heartbeats.silent({1: NOON}) == ()
