from dataclasses import replace

import pytest

from plimsoll.planners.calibration.measured_runs import MeasuredRun, layout_as_candidates, observed_run
from plimsoll.planners.ground.hardware import SiteEfficiency
from plimsoll.planners.timing.efficiency import efficiency_on, load_efficiency
from plimsoll.planners.training.planning import plan_training
from tests.planners.factories import hardware, question


def test_the_estimate_of_a_planned_run_is_the_plan_s_own():
    asked = question(framework="megatron")
    plan = plan_training(asked).plan
    observed = observed_run(MeasuredRun(question=asked, layout=plan.layout, step_seconds=7.0, pointer="/0"))
    assert observed.estimate(load_efficiency("megatron", "test-80gb").gpu) == pytest.approx(plan.step.seconds)
    assert (observed.kind, observed.stack, observed.measured_seconds) == ("run", "megatron", 7.0)


@pytest.mark.parametrize("moves", [False, True])
def test_a_layout_goes_there_and_back(moves):
    layout = plan_training(question(framework="megatron", gpus=16)).plan.layout
    layout = replace(layout, activation_offload=moves)
    again = layout_as_candidates(layout).layout(
        0,
        framework="megatron",
        framework_version=layout.framework_version,
        global_batch_size=64,
        offload_target=layout.offload_target,
        pipeline_schedule=layout.pipeline_schedule,
        pipeline_layout=layout.pipeline_layout,
        overlap=layout.overlap,
    )
    assert again == layout


def test_runs_in_other_layouts_are_no_repeats():
    asked = question(framework="megatron")
    layout = plan_training(asked).plan.layout
    names = {
        observed_run(MeasuredRun(question=asked, layout=each, step_seconds=7.0, pointer="/0")).what
        for each in (layout, replace(layout, micro_batch_size=2), replace(layout, recompute="full"))
    }
    assert len(names) == 3


def test_a_site_s_fractions_take_the_place_of_what_ships():
    site = SiteEfficiency(
        revision="r", fractions={"matmul_peak_fraction": 0.5}, spread={"megatron": 2.0}, provenance="measured here"
    )
    shipped = efficiency_on("megatron", hardware(8))
    own = efficiency_on("megatron", hardware(8, site=site))
    assert (own.gpu.matmul_peak_fraction, own.gpu.link_fraction) == (0.5, shipped.gpu.link_fraction)
    # Twice as wide on a logarithmic scale is the square of each bound.
    assert own.band(experts=False) == pytest.approx((shipped.stack.low**2, shipped.stack.high**2))
    assert "measured here" in own.provenance


def test_slower_products_make_a_slower_plan_with_its_own_band():
    site = SiteEfficiency(revision="r", fractions={"matmul_peak_fraction": 0.35}, spread={}, provenance="measured")
    shipped = plan_training(question(framework="fsdp2")).plan.step
    own = plan_training(question(framework="fsdp2", hardware=hardware(8, site=site))).plan.step
    assert own.seconds > 1.2 * shipped.seconds
