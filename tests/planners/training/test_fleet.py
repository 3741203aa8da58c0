from dataclasses import replace

import pytest

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.questions import LayoutRequest, NamedLayout
from plimsoll.planners.training.fleet import plan_fleet
from tests.planners.factories import gpu, hardware, question

FAST = {"id": "fast", "peak_flops_per_second": {"bf16": 2 * 989.4e12, "fp32": 67e12}}
SMALL = {"id": "small", "memory_bytes": 2**33}


def fleet(*cards, prices=None, **changes):
    asked = question(framework="fsdp2", **changes)
    prices = prices or [None] * len(cards)
    return [
        replace(asked, hardware=hardware(8, gpu=gpu(**card), usd_per_gpu_hour=price))
        for card, price in zip(cards, prices, strict=True)
    ]


def test_the_fastest_entry_is_the_plan_and_all_are_listed_best_first():
    found = plan_fleet(fleet({}, FAST))
    assert found.chosen == 1
    assert [entry.gpu for entry in found.answer.fleet] == ["fast", "test-80gb"]
    assert found.answer.fleet[0].step_seconds == found.answer.plan.step.seconds


def test_the_cheaper_card_wins_on_cost_though_it_is_slower():
    # Twice the speed at three times the price costs half as much again a token.
    found = plan_fleet(fleet({}, FAST, prices=[1.0, 3.0], objective="cost"))
    assert found.chosen == 0
    first, second = found.answer.fleet
    assert first.usd_per_token < second.usd_per_token
    # 8 GPUs at 1 $/h for the seconds of 64 x 8,192 tokens.
    assert first.usd_per_token == pytest.approx(8 / 3600 * first.step_seconds / (64 * 8192))


def test_cost_without_a_price_is_refused_at_the_entry():
    with pytest.raises(InvalidQuestion) as caught:
        plan_fleet(fleet({}, FAST, prices=[1.0, None], objective="cost"))
    assert caught.value.pointer == "/hardware/fleet/1/usd_per_gpu_hour"


def test_an_entry_that_fits_goes_before_a_faster_one_that_does_not():
    found = plan_fleet(fleet({**FAST, **SMALL, "id": "fast-small"}, {}, layout={"offload": "none"}))
    assert [(entry.gpu, entry.fits) for entry in found.answer.fleet] == [("test-80gb", True), ("fast-small", False)]


def test_in_time_goes_before_late_and_the_cheapest_in_time_wins():
    asked = {"objective": "deadline", "tokens": 64 * 8192}
    seconds = plan_fleet(fleet({}, **asked, deadline_seconds=1e9)).answer.plan.step.seconds
    both = plan_fleet(fleet(FAST, {}, prices=[3.0, 1.0], **asked, deadline_seconds=1.01 * seconds))
    assert both.answer.fleet[0].gpu == "test-80gb"
    one = plan_fleet(fleet(FAST, {}, prices=[3.0, 1.0], **asked, deadline_seconds=0.9 * seconds))
    assert [entry.meets_deadline for entry in one.answer.fleet] == [True, False]
    assert one.answer.fleet[0].gpu == "fast"


def test_an_entry_that_cannot_run_the_job_is_listed_with_its_refusal():
    found = plan_fleet(fleet({"id": "old", "peak_flops_per_second": {"fp32": 67e12}}, {}))
    assert found.chosen == 1
    (refused,) = (entry for entry in found.answer.fleet if entry.entry == 0)
    assert refused.layout is None
    assert "bf16" in refused.refusal


def test_where_no_entry_can_run_the_job_the_first_one_s_refusal_is_raised():
    with pytest.raises(InvalidQuestion, match="bf16"):
        plan_fleet(fleet({"peak_flops_per_second": {"fp32": 67e12}}))


def test_named_layouts_are_compared_on_the_chosen_entry():
    named = (NamedLayout(layout=LayoutRequest(tensor_parallel=3)),)
    found = plan_fleet(fleet({}, FAST, compare=named))
    assert [comparison.outcome for comparison in found.answer.comparisons] == ["excluded"]
    assert len(found.answer.fleet) == 2


def test_an_entry_that_may_lack_host_memory_goes_after_one_that_does_not():
    # On one card of the fast kind 8 billion parameters offloaded need 120 GiB of the host, and nobody says what it has.
    unsure, known = fleet(FAST, {}, layout={"offload": "optimizer+parameters"}, objective="fewest_gpus")
    unsure, known = (
        replace(each, framework="accelerate", hardware=hardware(1, gpu=each.hardware.gpu, host_memory_bytes=size))
        for each, size in ((unsure, None), (known, 2**40))
    )
    found = plan_fleet((unsure, known))
    assert [entry.verdict for entry in found.answer.fleet] == ["fits", "tight"]
    assert found.chosen == 1
