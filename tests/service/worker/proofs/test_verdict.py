"""When a dry run bears a plan out."""

import pytest

from plimsoll.service.worker.proofs.verdict import relative_error, verdict


def test_a_plan_that_promised_too_little_has_a_negative_error():
    assert relative_error(90, 100) == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("predicted", "expected"),
    [(9_499, "refuted"), (9_500, "confirmed"), (10_000, "confirmed"), (10_500, "confirmed"), (10_501, "refuted")],
)
def test_five_percent_either_way_is_tolerated(predicted, expected):
    assert verdict(predicted_bytes=predicted, measured_bytes=10_000, ran_own_code=True) == expected


def test_a_stand_in_can_only_be_consistent():
    assert verdict(predicted_bytes=100, measured_bytes=100, ran_own_code=False) == "consistent"


@pytest.mark.parametrize(("limit", "expected"), [(119, "refuted"), (120, "confirmed"), (121, "confirmed")])
def test_a_plan_said_to_fit_is_refuted_when_the_trace_passes_its_limit(limit, expected):
    # 100 measured and 20 of runtime need 120; the plan said 118.
    said = {"predicted_bytes": 98, "planned_peak_bytes": 118, "runtime_bytes": 20}
    assert verdict(measured_bytes=100, ran_own_code=True, limit_bytes=limit, **said) == expected


def test_a_plan_that_never_fitted_is_not_refuted_by_its_limit():
    said = {"predicted_bytes": 100, "planned_peak_bytes": 120, "runtime_bytes": 20}
    assert verdict(measured_bytes=100, ran_own_code=True, limit_bytes=50, **said) == "confirmed"
