"""Tests of an engine's factors fitted to a site's own deployments."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import pytest

from plimsoll.planners.calibration.serving import band_error, calibrate_serving, measured_serving
from plimsoll.planners.ground.errors import InvalidQuestion, NotYetAvailable
from plimsoll.planners.ground.hardware import SiteEfficiency, SiteServing
from plimsoll.planners.serving.times.efficiency import (
    FACTORS,
    FASTEST,
    Band,
    efficiency,
    engine_efficiency,
    scaled,
)
from tests.planners.serving.factories import question

LOADS = ((1, 2048, 512), (8, 256, 1024), (32, 4096, 256), (128, 1024, 1024), (64, 512, 128), (16, 6000, 64))


def asked(clients: int = 8, tokens_in: int = 1024, tokens_out: int = 256, **changes):
    return question(concurrency=clients, input_tokens=tokens_in, output_tokens=tokens_out, **changes)


def site_run(factors, clients: int, tokens_in: int, tokens_out: int):
    """Return a run on a site whose times are the shipped ones with these factors."""
    run = measured_serving(asked(clients, tokens_in, tokens_out), pointer="/0", token_seconds=1, first_token_seconds=1)
    work = replace(run.deployment.work, efficiency=scaled(run.deployment.work.efficiency, factors))
    state = replace(run.deployment, work=work).at(clients)
    return replace(run, token_seconds=state.tpot_seconds, first_token_seconds=state.ttft_seconds)


def factors(**changed: float) -> dict[str, float]:
    return {name: changed.get(name, 1.0) for name in FACTORS}


def found_of(calibration, name: str):
    return next(each for each in calibration.factors if each.name == name)


def test_a_band_stands_for_a_deviation():
    # 90 % of a normal distribution lie within 1.645 deviations: ln(2 / 0.5) / 3.290 = 0.4214.
    assert band_error(Band(low=0.5, high=2.0)) == pytest.approx(0.4214, abs=1e-4)


def test_a_site_that_runs_as_planned_keeps_what_ships():
    (found,) = calibrate_serving([site_run(factors(), *LOADS[1])])
    assert [each.fitted for each in found.factors] == pytest.approx([1.0] * len(FACTORS))
    assert found.error_shipped.mean_absolute == pytest.approx(0)


def test_a_site_slow_by_one_cause_is_explained_better_than_before_also_on_loads_left_out():
    (found,) = calibrate_serving([site_run(factors(reading=1.6), *load) for load in LOADS])
    errors = [each.mean_absolute for each in (found.error_fitted, found.error_left_out, found.error_shipped)]
    assert errors == sorted(errors)
    assert errors[1] < errors[2] / 2
    reading = found_of(found, "reading")
    assert reading.is_identifiable
    assert reading.fitted > max(each.fitted for each in found.factors if each.name != "reading")


def test_one_gpu_says_nothing_of_communication():
    (found,) = calibrate_serving([site_run(factors(overheads=2.0), *load) for load in LOADS])
    link = found_of(found, "communication")
    assert (link.fitted, link.resolution) == (1.0, 0.0)


def test_first_tokens_alone_tell_of_their_factor():
    runs = [replace(site_run(factors(first_token=1.5), *load), token_seconds=None) for load in LOADS]
    (found,) = calibrate_serving(runs)
    assert found_of(found, "first_token").fitted > 1.05
    assert found.error_fitted.mean_absolute < found.error_shipped.mean_absolute
    assert {each.kind for each in found.observations} == {"first_token"}


def test_measurements_that_agree_narrow_the_bands_of_what_was_measured():
    (found,) = calibrate_serving([replace(site_run(factors(), *load), first_token_seconds=None) for load in LOADS])
    # Five prior runs of the shipped variance and six without any error: sqrt(5 / 11).
    assert found.token_spread == pytest.approx(math.sqrt(5 / 11), rel=1e-3)
    assert found.first_token_spread == 1


@pytest.mark.parametrize("times", [0.05, 20.0])
def test_a_slip_of_the_unit_is_refused(times: float):
    run = site_run(factors(), *LOADS[0])
    with pytest.raises(InvalidQuestion, match="times the estimate") as refused:
        calibrate_serving([replace(run, token_seconds=times * run.token_seconds)])
    assert refused.value.pointer == "/0/tpot_seconds"


@pytest.mark.parametrize("missing", ["concurrency", "input_tokens", "output_tokens"])
def test_a_load_must_be_stated(missing: str):
    with pytest.raises(InvalidQuestion, match="needs concurrency"):
        measured_serving(replace(asked(), **{missing: None}), pointer="", token_seconds=1, first_token_seconds=None)


def test_a_deployment_that_cannot_run_was_not_measured():
    tight = asked(gpu_memory_utilization=0.1)
    with pytest.raises(InvalidQuestion, match="not one request"):
        measured_serving(tight, pointer="", token_seconds=1, first_token_seconds=None)


def test_an_engine_whose_speed_is_not_described_is_not_calibrated():
    slow = asked(engine="transformers", engine_version=None)
    with pytest.raises(NotYetAvailable, match="speed of transformers"):
        measured_serving(slow, pointer="", token_seconds=1, first_token_seconds=None)


def test_every_term_belongs_to_one_group():
    doubled, shipped = scaled(efficiency("vllm"), dict.fromkeys(FACTORS, 2.0)), efficiency("vllm")
    terms = dataclasses.asdict(shipped.step)
    assert dataclasses.asdict(doubled.step) == {name: 2 * value for name, value in terms.items()}
    # Steps that are awaited are scaled by their own terms.
    first = {name: 2 * value for name, value in dataclasses.asdict(shipped.first_token).items()}
    first["awaited_steps"] = shipped.first_token.awaited_steps
    assert dataclasses.asdict(doubled.first_token) == first


def test_a_plan_rests_on_its_sites_factors_and_bands():
    serving = SiteServing(factors=factors(reading=1.5), token_spread=0.5, first_token_spread=2.0)
    site = SiteEfficiency(revision="r", fractions={}, spread={}, provenance="here", serving={"vllm": serving})
    found, shipped = engine_efficiency("vllm", site), efficiency("vllm")
    assert found.step.operators == 1.5
    assert found.token_band.high == pytest.approx(math.sqrt(shipped.token_band.high))
    assert found.first_token_band.low == pytest.approx(shipped.first_token_band.low**2)
    assert engine_efficiency("sglang", site) == efficiency("sglang")
    assert engine_efficiency("vllm", None) == shipped


def test_no_factor_makes_operators_faster_than_cards_can():
    shipped = efficiency("vllm")
    halved = scaled(shipped, dict.fromkeys(FACTORS, 0.5))
    assert (halved.step.operators, halved.step.exchanges) == (FASTEST, FASTEST)
    assert halved.step.kernel_seconds == shipped.step.kernel_seconds / 2
