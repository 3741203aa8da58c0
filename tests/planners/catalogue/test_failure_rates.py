import pytest

from plimsoll.planners.catalogue.failure_rates import (
    PESSIMISTIC,
    failures_per_gpu_month,
    poisson_interval,
    published_range,
    published_rates,
)
from plimsoll.planners.ground.errors import UnknownName
from plimsoll.planners.ground.terms import FAILURE_RATE_NAMES
from plimsoll.planners.questions import GPU_FAILURES_PER_MONTH, USUAL_FAILURES


def test_every_rate_that_a_request_may_name_is_there_and_has_a_source():
    assert {*published_rates(), PESSIMISTIC} == set(FAILURE_RATE_NAMES)
    assert all(each.source and each.counted for each in published_rates().values())


def test_the_usual_rate_is_that_of_its_source():
    assert published_rates()[USUAL_FAILURES].per_gpu_month == GPU_FAILURES_PER_MONTH


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        # 419 / (54 x 16,384) x 30, 6.5 / (1,000 x 8) x 30, and (35 + 70) / (60 x 992) x 30.
        ("llama-3", 0.014207),
        ("rsc-1", 0.024375),
        ("opt-175b", 0.052923),
        # One and a half a week of 400: 1.5 / (7 x 400) x 30. 0.08 % of machines with 4 chips a day: 0.0008 / 4 x 30.
        ("jean-zay", 0.016071),
        ("tpu-v4", 0.006),
        ("pessimistic", 0.08),
    ],
)
def test_a_named_rate_is_failures_over_days_of_a_gpu(name: str, rate: float):
    assert failures_per_gpu_month(name) == pytest.approx(rate, rel=0.002)


def test_a_rate_that_nobody_published_is_refused_with_the_nearest():
    with pytest.raises(UnknownName, match="rsc-1"):
        failures_per_gpu_month("rsc-3")


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # Gehrels 1986, doi:10.1086/164079, tables 1 and 2, limits of one side at 95 %.
    [(0, 0.0, 2.996), (1, 0.0513, 4.744), (10, 5.425, 16.96), (100, 84.14, 118.1)],
)
def test_the_interval_of_a_count_is_the_exact_one(count: int, low: float, high: float):
    assert poisson_interval(count) == pytest.approx((low, high), rel=1e-3, abs=1e-6)


def test_only_what_is_counted_or_bounded_by_its_source_has_an_interval():
    # 5.425 and 16.96 failures in 504 x 55 days of a GPU, in months of 30 days.
    assert published_rates()["b200-504"].interval == pytest.approx((0.00587, 0.0184), rel=0.01)
    # One and two failures a week.
    assert published_rates()["jean-zay"].interval == pytest.approx((0.0107, 0.0214), rel=0.01)
    assert published_rates()["opt-175b"].interval is None


def test_the_range_is_that_of_clusters_of_gpus():
    assert [each.name for each in published_range()] == ["rsc-2", "opt-175b"]
