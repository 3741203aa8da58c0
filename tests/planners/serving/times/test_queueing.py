"""Tests of the waits at a request rate."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.planners.serving.times.queueing import (
    Waiting,
    answers_by_running,
    erlang_delay,
    occupancy,
    place_wait,
    prompt_wait,
)


def test_a_wait_is_none_for_those_who_find_the_way_free():
    # Half wait 2 s on average: 1 s over all; the 99th of 100 waits 2 ln(0.5 / 0.01).
    wait = Waiting(probability=0.5, seconds_if_any=2.0)
    assert wait.mean_seconds == 1.0
    assert wait.quantile_seconds(0.5) == 0.0
    assert wait.quantile_seconds(0.99) == pytest.approx(2 * math.log(50))


def test_prompts_at_half_load_wait_half_a_prompt_on_average():
    # M/D/1: 0.5 x P / (2 x 0.5).
    assert prompt_wait(requests_per_second=5, prompt_seconds=0.1).mean_seconds == pytest.approx(0.05)


def test_a_single_place_is_taken_as_often_as_it_works():
    # M/M/1: the delay's probability is the load, the mean wait load x S / (1 - load).
    assert erlang_delay(0.75, 1) == pytest.approx(0.75)
    assert place_wait(requests_per_second=0.75, service_seconds=1, places=1).mean_seconds == pytest.approx(3)


def test_two_places_at_a_load_of_one_delay_a_third():
    # Erlang C of 1 Erlang on 2 servers is 1/3, as tables have it.
    assert erlang_delay(1.0, 2) == pytest.approx(1 / 3)


@given(places=st.integers(1, 200), part=st.floats(0.01, 0.99))
def test_more_places_for_the_same_requests_delay_fewer(places, part):
    offered = places * part
    assert 0 <= erlang_delay(offered, places + 1) <= erlang_delay(offered, places) <= 1


def test_a_wait_too_rare_for_a_float_is_none():
    # 1 / loss = 1 + 100 / 1 + 100 x 99 / 1 + ... is beyond 2^60 after ten terms.
    assert erlang_delay(1.0, 100) == 0.0
    assert erlang_delay(0.0, 1) == 0.0


def test_the_terms_left_out_change_nothing():
    # The loss formula's recursion, term by term: B(n) = a B(n - 1) / (n + a B(n - 1)).
    loss, offered, places = 1.0, 900.0, 1000
    for taken in range(1, places + 1):
        loss = offered * loss / (taken + offered * loss)
    assert erlang_delay(offered, places) == pytest.approx(places * loss / (places - offered * (1 - loss)), rel=1e-12)


@pytest.mark.parametrize(("rate", "places"), [(0.7, 1), (5.0, 8), (30.0, 40), (190.0, 200)])
def test_places_that_do_not_slow_one_another_are_erlangs(rate, places):
    # Each answers one request a second, however many others run.
    answers = answers_by_running(places, lambda running: running)
    seen = occupancy(requests_per_second=rate, answers_per_second=answers, part=0.99)
    erlang = place_wait(requests_per_second=rate, service_seconds=1.0, places=places)
    assert seen.running == pytest.approx(rate)
    assert seen.wait.probability == pytest.approx(erlang.probability)
    assert seen.wait.mean_seconds == pytest.approx(erlang.mean_seconds)


def test_a_server_that_is_shared_has_a_geometric_queue():
    # One request a second in all, whoever runs (M/M/1): n are there with probability 0.2 x 0.8^n, 0.8 in the mean wait
    # for 1 / (1 - 0.8) s of whole answers; of two places 0.64 find both taken.
    seen = occupancy(requests_per_second=0.8, answers_per_second=answers_by_running(2, lambda running: 1.0), part=0.99)
    assert seen.wait.probability == pytest.approx(0.64)
    assert seen.wait.seconds_if_any == pytest.approx(5.0)
    assert seen.running == pytest.approx(0.16 + 2 * 0.64)


def test_a_rate_beyond_full_places_has_no_steady_state():
    answers = answers_by_running(2, lambda running: running)
    assert occupancy(requests_per_second=2.0, answers_per_second=answers, part=0.99) is None
