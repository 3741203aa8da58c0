"""Tests of the least squares that calibrations share."""

from __future__ import annotations

import numpy as np
import pytest

from plimsoll.planners.calibration.ridge import ridge


def test_one_measurement_moves_its_offset_as_far_as_its_error_allows():
    # Posterior mean (0.3 / 0.1^2) / (1 / 0.1^2 + 1 / 0.2^2) = 30 / 125 = 0.24, and deviation 125^-1/2.
    found = ridge(lambda offsets: 0.3 - offsets, errors=np.array([0.1]), spread=0.2, ceiling=np.array([1.0]))
    assert found.offsets == pytest.approx([0.24])
    assert found.residual == pytest.approx([0.06])
    assert found.unknown == pytest.approx([125**-0.5])
    # The measurement's part is 100 of 125, and without it nothing moves.
    assert found.resolution == pytest.approx([0.8])
    assert found.left_out == pytest.approx([0.3])


def test_an_offset_stays_at_its_ceiling():
    found = ridge(lambda offsets: 0.3 - offsets, errors=np.array([0.1]), spread=0.2, ceiling=np.array([0.1]))
    assert found.offsets == pytest.approx([0.1])


def test_what_nothing_measures_stays_where_it_was():
    found = ridge(lambda offsets: 0.3 - offsets[:1], errors=np.array([0.1]), spread=0.2, ceiling=np.array([1.0, 1.0]))
    assert found.offsets[1] == 0
    assert found.resolution[1] == 0
    assert found.unknown[1] == pytest.approx(0.2)


def test_no_measurement_leaves_every_offset():
    found = ridge(lambda _: np.zeros(0), errors=np.zeros(0), spread=0.2, ceiling=np.array([1.0]))
    assert found.offsets == pytest.approx([0.0])
    assert found.left_out.shape == (0,)
