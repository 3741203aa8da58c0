"""Tests of seconds along a size."""

from __future__ import annotations

import numpy as np
import pytest

from plimsoll.planners.serving.times.curve import SIZES, Curve


def test_what_grows_with_its_size_is_read_exactly_between_the_sizes():
    # 3 us a token: straight in logarithms, too.
    curve = Curve(3e-6 * SIZES)
    assert [curve.at(size) for size in (1, 3, 700.5, 32768)] == pytest.approx([3e-6, 9e-6, 2101.5e-6, 98304e-6])


def test_half_way_between_two_sizes_is_their_geometric_mean():
    # 1, 1, 4, 4 ... s at 1, 2, 4, 8 ...: the square root of 8 lies half way from 2 to 4.
    curve = Curve(np.where(SIZES < 4, 1.0, 4.0))
    assert curve.at(8**0.5) == pytest.approx(2.0)


def test_less_than_one_costs_what_one_does_and_more_than_the_last_goes_on_growing():
    curve = Curve(SIZES)
    assert curve.at(0.25) == 1
    assert curve.at(2.0**17) == pytest.approx(2.0**17)


def test_what_takes_no_time_takes_next_to_none():
    assert Curve(np.zeros_like(SIZES)).at(64) < 1e-11
