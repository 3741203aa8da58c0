import numpy as np
import pytest

from benchmarks.accuracy.step_time.statistics import errors, kendall_tau, regret, weighted_mean


def test_errors_are_of_the_measured_and_bias_has_a_sign():
    found = errors(np.array([1.1, 0.8, 1.0]), np.ones(3), np.full(3, 0.95), np.full(3, 1.05))
    # +10 %, -20 %, 0; 1.1 x 0.95 is above 1 and 0.8 x 1.05 below it.
    assert found.mean == pytest.approx(0.1)
    assert found.median == pytest.approx(0.1)
    assert found.bias == pytest.approx(0.0)
    assert found.coverage == pytest.approx(1 / 3)


def test_errors_of_nothing_are_no_number():
    nothing = np.array([])
    assert errors(nothing, nothing, nothing, nothing).cases == 0
    assert np.isnan(errors(nothing, nothing, nothing, nothing).mean)


@pytest.mark.parametrize(
    ("second", "tau"),
    # Of six pairs: all agree; all disagree; one swapped, (5 - 1) / 6; one tie, 5 / sqrt(6 x 5).
    [([1, 2, 3, 4], 1.0), ([4, 3, 2, 1], -1.0), ([2, 1, 3, 4], 4 / 6), ([1, 1, 3, 4], 5 / 30**0.5)],
)
def test_kendall_s_tau_counts_pairs(second, tau):
    assert kendall_tau(np.array([1.0, 2.0, 3.0, 4.0]), np.array(second, dtype=float)) == pytest.approx(tau)


def test_kendall_s_tau_of_equals_is_no_number():
    assert np.isnan(kendall_tau(np.ones(3), np.arange(3.0)))


def test_regret_is_what_the_first_choice_loses():
    # The estimate prefers the second, which took 12 s where the best took 10.
    assert regret(np.array([2.0, 1.0, 3.0]), np.array([10.0, 12.0, 11.0])) == pytest.approx(0.2)


def test_a_weighted_mean_leaves_out_what_is_no_number():
    assert weighted_mean([1.0, float("nan"), 3.0], [1, 5, 3]) == pytest.approx(2.5)
    assert np.isnan(weighted_mean([float("nan")], [1]))
