"""Tests of when requests come and how long they are."""

from __future__ import annotations

from itertools import pairwise

import pytest

from plimsoll.planners.serving.times.arrivals import (
    burst_load,
    closed_loop_load,
    random_load,
    request_lengths,
    running_lengths,
)

LENGTHS = ((10, 4),) * 400


def gaps():
    return [
        after - before for before, after in pairwise((0.0, *random_load(LENGTHS, requests_per_second=2).sent_seconds))
    ]


def test_random_gaps_have_a_poisson_process_mean_and_spread():
    # Mean 1/2 s; 1 - e^-1 of the gaps are below it.
    assert sum(gaps()) / 400 == pytest.approx(0.5, rel=0.01)
    assert sum(gap < 0.5 for gap in gaps()) / 400 == pytest.approx(0.632, abs=0.01)


def test_random_gaps_are_not_in_order():
    rises = sum(before < after for before, after in pairwise(gaps()))
    assert 160 < rises < 240


def test_requests_at_random_come_in_crowds():
    # Of a Poisson process the numbers in equal stretches of time spread as much as their mean.
    sent = random_load(LENGTHS, requests_per_second=2).sent_seconds
    numbers = [sum(start <= each < start + 4 for each in sent) for start in range(0, 192, 4)]
    mean = sum(numbers) / len(numbers)
    assert mean == pytest.approx(8, rel=0.05)
    assert sum((number - mean) ** 2 for number in numbers) / len(numbers) == pytest.approx(8, rel=0.4)


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7, 0.8, 0.85])
def test_random_gaps_queue_as_they_do_at_random(load):
    # A server of one second a request: the mean wait of M/D/1 is load / (2 (1 - load)) (Pollaczek and Khinchine).
    sent = random_load(((1, 1),) * 480, requests_per_second=load).sent_seconds
    waits, free = [], 0.0
    for each in sent:
        waits.append(max(0.0, free - each))
        free = max(free, each) + 1
    assert sum(waits[32:352]) / 320 == pytest.approx(load / 2 / (1 - load), rel=0.07)


def test_clients_whose_requests_run_have_put_out_some_of_their_answers():
    load = closed_loop_load(((10, 9),) * 5, clients=3, begun=((10, 9),) * 2, followed=4)
    assert load.lengths[2:] == ((10, 9),) * 5
    assert (load.sent_seconds, load.begun, load.followed) == ((0.0, 0.0, 0.0), 2, 6)


def test_requests_under_way_are_at_random_places_in_their_answers():
    # What is out counts as of the prompt; of answers of 101 tokens 0 to 99 are, evenly.
    load = closed_loop_load((), clients=400, begun=((10, 101),) * 400)
    assert {first + last for first, last in load.lengths} == {111}
    out = sorted(first - 10 for first, _ in load.lengths)
    assert 0 <= out[0] < 3 < 97 < out[-1] <= 99
    assert sum(out) / 400 == pytest.approx(49.5, rel=0.05)


def test_no_more_clients_start_than_there_are_requests():
    assert len(closed_loop_load(LENGTHS[:2], clients=4).sent_seconds) == 2


def test_bursts_come_together():
    assert burst_load(LENGTHS[:5], requests=2, seconds=3.0).sent_seconds == (0.0, 0.0, 3.0, 3.0, 6.0)


def test_of_those_that_run_more_are_long():
    # Answers of 1 and 3 tokens: of four that run at a moment one is short.
    assert sum(last == 1 for _, last in running_lengths((10,), (1, 3), 400)) == pytest.approx(100, abs=2)


def test_lengths_come_in_their_proportion():
    pairs = request_lengths((10, 20), (1, 2, 3, 4), 80)
    assert [sum(pair == each for each in pairs) for pair in sorted(set(pairs))] == pytest.approx([10] * 8, abs=1)
