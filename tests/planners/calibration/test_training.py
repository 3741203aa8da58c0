import math
from dataclasses import replace

import pytest

from plimsoll.planners.calibration.training import (
    FRACTIONS,
    MICROBENCHMARK_ERROR,
    Calibration,
    Observation,
    calibrate,
    prior_spread,
    run_error,
)
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.timing.efficiency import GpuEfficiency, load_efficiency, shipped_generations

SHIPPED = load_efficiency("reference", "h100-sxm-80gb").gpu
PRIOR = prior_spread(shipped_generations())


def memory(times: float, *, what: str = "memory", pointer: str = "/0") -> Observation:
    """Return a benchmark of memory alone: a second of the datasheet's rate, `times` the shipped estimate."""
    return Observation(
        pointer=pointer,
        what=what,
        kind="memory",
        stack="",
        measured_seconds=times / SHIPPED.memory_bandwidth_fraction,
        estimate=lambda gpu: 1.0 / gpu.memory_bandwidth_fraction,
    )


def run(times: float, what: str, *, stack: str = "fsdp2") -> Observation:
    """Return a run of one part matrix products and one part attention."""

    def estimate(gpu: GpuEfficiency) -> float:
        return 1.0 / gpu.matmul_peak_fraction + 1.0 / gpu.attention_peak_fraction

    return Observation(
        pointer=f"/{what}",
        what=what,
        kind="run",
        stack=stack,
        measured_seconds=times * estimate(SHIPPED),
        estimate=estimate,
    )


def fraction(found: Calibration, name: str):
    return next(each for each in found.fractions if each.name == name)


def test_one_measurement_is_shrunk_towards_what_ships():
    # Posterior mean of one observation: (ln 1.1 / e^2) / (1 / e^2 + 1 / p^2), with e = 0.08 and the prior's p.
    found = fraction(calibrate([memory(1.1)], SHIPPED), "memory_bandwidth_fraction")
    error, prior = MICROBENCHMARK_ERROR, PRIOR
    share = prior**2 / (prior**2 + error**2)
    assert found.fitted == pytest.approx(SHIPPED.memory_bandwidth_fraction * math.exp(-share * math.log(1.1)))
    assert found.resolution == pytest.approx(share)
    assert found.is_identifiable
    # Posterior deviation: 1 / sqrt(1 / e^2 + 1 / p^2).
    assert found.relative_error == pytest.approx((error**-2 + prior**-2) ** -0.5)


def test_what_nothing_measures_stays_as_shipped_and_is_said_to_be_unknown():
    found = calibrate([memory(1.1)], SHIPPED)
    assert list(found.fitted) == ["memory_bandwidth_fraction"]
    link = fraction(found, "link_fraction")
    assert (link.fitted, link.resolution, link.is_identifiable) == (SHIPPED.link_fraction, 0.0, False)
    assert link.relative_error == pytest.approx(PRIOR)


def test_the_prior_is_how_far_the_generations_lie_apart_where_they_differ_most():
    # Two values a factor of e^0.4 apart deviate by 0.2 each from their mean, two a factor of e^0.1 apart by 0.05.
    other = replace(
        SHIPPED,
        matmul_peak_fraction=SHIPPED.matmul_peak_fraction * math.exp(-0.4),
        link_fraction=SHIPPED.link_fraction * math.exp(-0.1),
    )
    assert prior_spread((SHIPPED, other)) == pytest.approx(0.2)


def test_a_run_cannot_tell_two_fractions_apart_that_it_mixes():
    found = calibrate([run(1.3, "a")], SHIPPED)
    # The prior tells them apart: the one that takes more of the time moves more.
    assert fraction(found, "attention_peak_fraction").resolution > fraction(found, "matmul_peak_fraction").resolution
    assert not any(each.is_identifiable for each in found.fractions)


def test_errors_shrink_and_those_of_left_out_measurements_lie_between():
    found = calibrate([run(1.3, str(number)) for number in range(6)], SHIPPED)
    assert found.error_shipped.bias == pytest.approx(1 / 1.3 - 1)
    assert found.error_fitted.mean_absolute < found.error_left_out.mean_absolute < found.error_shipped.mean_absolute


def test_runs_that_agree_narrow_the_band_and_runs_that_scatter_widen_it():
    (agreeing,) = calibrate([run(1.0, str(number)) for number in range(10)], SHIPPED).bands
    # Five prior runs of the shipped variance and ten without any error: sqrt(5 / 15).
    assert agreeing.spread == pytest.approx(math.sqrt(5 / 15))
    assert (agreeing.stack, agreeing.runs) == ("fsdp2", 10)
    wild = [run(times, str(number)) for number, times in enumerate((3.0, 1 / 3.0) * 5)]
    (scattered,) = calibrate(wild, SHIPPED).bands
    assert scattered.spread > 1


def test_benchmarks_say_nothing_of_the_bands_of_runs():
    assert calibrate([memory(1.1)], SHIPPED).bands == ()


def test_the_error_of_runs_follows_from_the_band():
    # 90 % of a normal distribution lie within 1.645 deviations: ln(1.65 / 0.75) / 3.290 = 0.240.
    assert run_error(load_efficiency("fsdp2").stack, 0.90) == pytest.approx(0.240, abs=0.001)


def test_a_fraction_never_exceeds_one():
    found = calibrate([memory(0.81, what=str(number)) for number in range(50)], SHIPPED)
    assert fraction(found, "memory_bandwidth_fraction").fitted <= 1.0


def test_repeats_count_once_by_their_geometric_mean():
    found = calibrate([memory(1.0), memory(1.21, pointer="/1")], SHIPPED)
    alone = calibrate([memory(1.1)], SHIPPED)
    assert found.fitted["memory_bandwidth_fraction"] == pytest.approx(alone.fitted["memory_bandwidth_fraction"])
    assert [each.pointers for each in found.observations] == [("/0", "/1")]


@pytest.mark.parametrize(("times", "works"), [(1.49, True), (1.51, False)])
def test_repeats_that_differ_more_than_gpus_do_contradict_each_other(times: float, works: bool):
    both = [memory(1.0), memory(times, pointer="/1")]
    if works:
        calibrate(both, SHIPPED)
        return
    with pytest.raises(InvalidQuestion, match="disturbed") as caught:
        calibrate(both, SHIPPED)
    assert caught.value.pointer == "/1"


@pytest.mark.parametrize(("times", "works"), [(0.11, True), (0.09, False), (9.9, True), (10.1, False)])
def test_a_slip_of_the_unit_is_refused(times: float, works: bool):
    if works:
        calibrate([run(times, "a")], SHIPPED)
        return
    with pytest.raises(InvalidQuestion, match="Check the unit") as caught:
        calibrate([run(times, "a")], SHIPPED)
    assert caught.value.pointer == "/a"


def test_a_kernel_faster_than_the_datasheet_is_refused():
    # 0.80 of the rate ships: 0.79 times that time is faster than the rate itself.
    with pytest.raises(InvalidQuestion, match="datasheet"):
        calibrate([memory(0.79)], SHIPPED)


def test_every_fraction_is_one_of_the_gpu_s():
    assert all(0 < getattr(SHIPPED, name) <= 1 for name in FRACTIONS)
