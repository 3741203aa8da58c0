"""Fits of the step time, and what they are held to."""

import numpy as np
import pytest

from benchmarks.accuracy.step_time.cases import all_cases
from benchmarks.accuracy.step_time.fit import PARAMETERS, PRIOR_ERROR, Fit, fitted_values, start_values, strayed

CASES = [case for case in all_cases()[0] if case.source == "MT-NLG 530B"]
PRIORS = np.array([one.prior for one in PARAMETERS])


def place(file, key):
    return next(index for index, one in enumerate(PARAMETERS) if (one.file, one.key) == (file, key))


def test_what_no_case_tells_of_goes_to_its_prior():
    fit = Fit(CASES)
    values = fitted_values(fit, start_values())
    silent = fit.left_alone()
    assert place("hopper", "matmul_peak_fraction") in silent
    np.testing.assert_allclose(values[silent], PRIORS[silent], atol=1e-3)
    # These three runs took longer than the prior has it.
    told = place("ampere", "matmul_peak_fraction")
    assert values[told] < PRIORS[told] - 0.01


def test_a_figure_one_spread_from_its_prior_costs_what_a_run_missed_by_five_percent_does():
    values = PRIORS.copy()
    assert not strayed(values).any()
    values[3] += PARAMETERS[3].spread
    assert strayed(values)[3] == pytest.approx(PRIOR_ERROR)


def test_cards_are_held_to_their_own_measured_products():
    # The middle one of three engines' products of 8,192 a side: A100 84 % of the peak, H100 75 %, B200 67 %.
    cards = [place(name, "matmul_peak_fraction") for name in ("ampere", "hopper", "blackwell")]
    np.testing.assert_allclose(PRIORS[cards], [0.84, 0.75, 0.67], atol=0.005)


def test_every_prior_lies_within_its_bounds():
    assert all(one.low <= one.prior <= one.high for one in PARAMETERS)
