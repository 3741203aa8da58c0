import numpy as np
import pytest

from benchmarks.load.memory import fitted


def test_a_line_through_samples_has_their_slope_and_no_error_where_they_lie_on_it():
    line = fitted(np.array([0.0, 0.5, 1.0]), np.array([100.0, 101.0, 102.0]))
    assert (line.mb_per_hour, line.standard_error_mb_per_hour, line.spread_mb) == pytest.approx((2.0, 0.0, 0.0))


def test_samples_about_a_level_have_no_slope_and_a_spread():
    # Deviations 1, -1, -1, 1: four squares over two degrees of freedom make a spread of sqrt(2) MB; the hours lie
    # 1.5, 0.5, 0.5 and 1.5 from their middle, and sqrt(2) / sqrt(5) is 0.632.
    line = fitted(np.array([0.0, 1.0, 2.0, 3.0]), np.array([101.0, 99.0, 99.0, 101.0]))
    assert line.mb_per_hour == pytest.approx(0.0)
    assert line.spread_mb == pytest.approx(1.41421, abs=1e-5)
    assert line.standard_error_mb_per_hour == pytest.approx(0.632456, abs=1e-6)
