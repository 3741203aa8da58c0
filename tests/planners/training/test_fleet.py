from dataclasses import replace

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.questions import LayoutRequest, NamedLayout
from plimsoll.planners.training.fleet import plan_fleet, usd_per_token
from plimsoll.planners.training.planning import plan_training
from tests.planners.factories import gpu, hardware, question, small_llama

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


def dearer(card: str, *, times: float):
    """Return a fleet of an H100 and another card whose tokens cost so many times as much."""
    asked = question(framework="ddp", objective="cost", model=small_llama(), sequence_length=512)
    h100, other = (
        replace(asked, hardware=hardware(8, gpu=catalogue().gpu(name), usd_per_gpu_hour=1.0))
        for name in ("h100-sxm-80gb", card)
    )
    prices = [usd_per_token(each, plan_training(each)) for each in (h100, other)]
    return [h100, replace(other, hardware=replace(other.hardware, usd_per_gpu_hour=times * prices[0] / prices[1]))]


def test_a_card_that_nobody_timed_does_not_go_first_for_less_than_the_band():
    # ddp's band is 0.65 to 1.55, timed card or not. Half its logarithm is 0.4345, of two together 0.6145, and
    # e^(0.6145 x 1.28155 / 1.64485) = e^0.4788 = 1.614.
    found = plan_fleet(dearer("mi300x-192gb", times=1 / 1.58))
    assert [entry.gpu for entry in found.answer.fleet] == ["h100-sxm-80gb", "mi300x-192gb"]
    assert [entry.timed_runs for entry in found.answer.fleet] == ["other_stacks_on_gpu", "none_on_gpu"]
    assert found.answer.summary.endswith(
        "MI300X 192 GB is ahead by the estimate, but no timed run on it was fitted, and a lead below 61% is within the "
        "band: what was timed goes first."
    )


def test_a_card_that_nobody_timed_goes_first_beyond_the_band_and_says_so():
    found = plan_fleet(dearer("mi300x-192gb", times=1 / 1.70))
    assert found.answer.fleet[0].gpu == "mi300x-192gb"
    assert found.answer.summary.endswith("goes first by an estimate alone: no timed run on it was fitted.")


def test_an_order_that_steps_do_not_make_is_left_by_ties():
    # Without prices the fewest GPUs in time go first, and of as many the fastest.
    asked = question(
        framework="ddp",
        model=small_llama(),
        sequence_length=512,
        objective="deadline",
        tokens=1e6,
        deadline_seconds=1e9,
    )
    fleet = [
        replace(asked, hardware=hardware(gpus, gpu=catalogue().gpu(name)))
        for name, gpus in (("mi300x-192gb", 4), ("h100-sxm-80gb", 8))
    ]
    found = plan_fleet(fleet)
    assert found.answer.fleet[0].gpu == "mi300x-192gb"
    assert "no timed run on it was fitted" in found.answer.summary


def test_a_card_that_does_not_fit_is_not_said_to_go_first():
    found = plan_fleet(fleet({**SMALL, "memory_bytes": 2**30}, layout={"offload": "none"}))
    assert not found.answer.fits
    assert "no timed run" not in found.answer.summary


def test_a_card_that_was_timed_goes_first_without_a_word():
    found = plan_fleet(dearer("a100-sxm-80gb", times=1 / 1.05))
    assert found.answer.fleet[0].gpu == "a100-sxm-80gb"
    assert "no timed run" not in found.answer.summary


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
