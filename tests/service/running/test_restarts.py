import pytest

from plimsoll.service.running.restarts import Restarts


@pytest.fixture
def restarts() -> Restarts:
    return Restarts(good_while_seconds=10.0)


def test_what_keeps_dying_waits_twice_as_long_each_time_up_to_the_longest(restarts):
    assert [restarts.pause_seconds(0.5) for _ in range(7)] == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]


@pytest.mark.parametrize(("lived_seconds", "pause_seconds"), [(9.9, 4.0), (10.0, 4.0), (10.1, 0.5)])
def test_what_lived_longer_than_a_good_while_is_soon_back(restarts, lived_seconds, pause_seconds):
    for _ in range(3):
        restarts.pause_seconds(0.0)
    assert restarts.pause_seconds(lived_seconds) == pause_seconds
