import math

import pytest

from plimsoll.planners.questions import CountedFailures, Resilience
from plimsoll.planners.training import resilience
from tests.planners.factories import LLAMA_7B, llama
from tests.planners.training_cases import job


def test_failures_a_day_grow_with_the_gpus():
    # 1,000 x 0.08 / 30 = 2.667; Llama 3's 16,384 GPUs had 419 unexpected interruptions in 54 days, 7.76 a day.
    llama_3 = resilience.failures_per_day(16_384, Resilience().gpu_failures_per_month)
    assert llama_3 == pytest.approx(419 / 54, rel=0.02)
    assert resilience.failures_per_day(1000, 0.08) == pytest.approx(2.667, abs=0.001)


def test_no_failures_mean_no_checkpoint_is_ever_due():
    between = resilience.mean_seconds_between_failures(1000, 0.0)
    assert math.isinf(between)
    assert math.isinf(resilience.young_daly_interval_seconds(60, between))
    interval = resilience.daly_interval_seconds(60, between)
    assert math.isinf(interval)
    assert goodput(interval=interval, saving=60, recovery=600, between=between) == 1.0


def goodput(*, interval: float, saving: float, recovery: float, between: float) -> float:
    return resilience.goodput(
        interval_seconds=interval,
        checkpoint_seconds=saving,
        recovery_seconds=recovery,
        mean_between_failures=between,
    )


def test_young_daly_is_the_root_of_twice_delta_m():
    # √(2 x 50 s x 32,400 s) = 1,800 s.
    assert resilience.young_daly_interval_seconds(50, 32_400) == pytest.approx(1800)


@pytest.mark.parametrize(("between", "published"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_daly_s_interval_is_that_of_his_figures(between: float, published: float):
    # Daly 2006, figures 3 to 5: checkpoints of 5 minutes and failures every 24 h, 6 h and 15 min; printed to two or
    # three digits.
    assert resilience.daly_interval_seconds(5, between) == pytest.approx(published, rel=0.006)


@pytest.mark.parametrize(("saving", "interval"), [(2.0, 1.0), (3.0, 1.0)])
def test_checkpoints_as_long_as_two_failures_are_taken_once_a_failure(saving: float, interval: float):
    assert resilience.daly_interval_seconds(saving, 1.0) == interval


def test_the_higher_order_meets_the_first_where_checkpoints_are_short():
    # x = 1 / 2e8: √x/3 and δ are below 0.01 % of √2e8 = 14,142 s.
    first, higher = (
        interval(1.0, 1e8) for interval in (resilience.young_daly_interval_seconds, resilience.daly_interval_seconds)
    )
    assert higher == pytest.approx(first, rel=1e-4)


def test_goodput_pays_for_saving_restarting_and_work_done_again():
    # 1,750 s of work and 50 s of saving, M = 36,000 s, R = 600 s: 1750 / (36000 x e^(1/60) x (e^0.05 - 1)) =
    # 1750 / (36000 x 1.016806 x 0.051271) = 0.93245.
    assert goodput(interval=1750, saving=50, recovery=600, between=36_000) == pytest.approx(0.93245, abs=1e-5)


def test_goodput_falls_to_nothing_and_not_below():
    assert goodput(interval=1800, saving=50, recovery=600, between=1) == 0.0
    assert 0.0 < goodput(interval=1800, saving=50, recovery=600, between=300) < 0.01


def test_no_other_interval_leaves_more_than_daly_s():
    best = goodput(interval=resilience.daly_interval_seconds(50, 9000), saving=50, recovery=600, between=9000)
    for interval in (300, 600, 850, 1100, 2000):
        assert goodput(interval=interval, saving=50, recovery=600, between=9000) <= best * 1.0001


def test_spare_nodes_are_binomial():
    # Each of 2 nodes up half the time: both 1/4, at least 2 of 3 1/2, at least 2 of 4 11/16.
    assert resilience.enough_nodes_probability(2, 2, 0.5) == pytest.approx(1 / 4)
    assert resilience.enough_nodes_probability(2, 3, 0.5) == pytest.approx(1 / 2)
    assert resilience.enough_nodes_probability(2, 4, 0.5) == pytest.approx(11 / 16)


@pytest.mark.parametrize(("target", "spares"), [(0.24, 0), (0.26, 1), (0.49, 1), (0.51, 2), (0.68, 2), (0.69, None)])
def test_the_fewest_spares_that_reach_the_target_are_found(target: float, spares: int | None):
    # One failure a second and a second of repair: up half the time.
    found = resilience.spare_nodes(2, node_failures_per_second=1.0, repair_seconds=1.0, target_availability=target)
    assert (None if found is None else found[0]) == spares


def test_nodes_that_never_fail_need_no_spares():
    found = resilience.spare_nodes(9, node_failures_per_second=0.0, repair_seconds=1e6, target_availability=0.9999)
    assert found == (0, 1.0)


def test_recovery_is_restart_reading_and_warming_up():
    assert resilience.recovery_seconds(Resilience(), load_seconds=20) == 620
    given = Resilience(restart_seconds=5.0, warm_up_seconds=30.0)
    assert resilience.recovery_seconds(given, load_seconds=20) == 55


@pytest.mark.parametrize(("framework", "bytes_a_parameter"), [("reference", 14), ("fsdp2", 12), ("megatron", 14)])
def test_checkpoints_hold_weights_copies_and_moments(framework: str, bytes_a_parameter: int):
    model = llama(LLAMA_7B)
    assert resilience.checkpoint_bytes(job(framework, model=model)) == bytes_a_parameter * model.parameters


def test_lora_saves_its_adapters_only():
    model = llama(LLAMA_7B)
    assert resilience.checkpoint_bytes(job("reference", model=model, method="lora")) == 14 * 39_976_960


def test_given_rates_replace_the_published_ones():
    given = Resilience(checkpoint_bytes_per_second=1e9, restart_seconds=5.0)
    assert resilience.checkpoint_seconds(10**10, 8, given) == 10.0
    assert resilience.restart_seconds(given) == 5.0
    # 16,384 GPUs at Llama 3's 2 TB/s.
    assert resilience.checkpoint_seconds(2 * 10**12, 16_384, Resilience()) == pytest.approx(1.0)
    assert resilience.restart_seconds(Resilience()) == 600.0


def test_llama_3_kept_no_less_of_its_time_than_it_says():
    # 405.85e9 parameters x 14 bytes = 5.68 TB at 2 TB/s: 2.84 s. M = 54 x 86,400 / 419 = 11,135 s; Daly's interval
    # √(2 x 2.84 x 11,135) x 1.0038 - 2.84 = 249.6 s; R = 602.8 s.
    # 249.6 / (11,135 x e^0.05414 x (e^0.02267 - 1)) = 0.926. Its authors say that it was above
    # 90 % (arXiv:2407.21783, section 3.3.4).
    between = 54 * 86_400 / 419
    interval = resilience.daly_interval_seconds(2.84, between)
    assert goodput(interval=interval, saving=2.84, recovery=602.84, between=between) == pytest.approx(0.926, abs=0.001)


@pytest.mark.parametrize(
    ("given", "source", "interval"),
    [
        # Nobody said: any of the clusters.
        (Resilience(), "llama-3", (0.00877, 0.0529)),
        # 385.9 to 454.3 interruptions in 54 days.
        (Resilience(gpu_failures_per_month=0.0142, failures_like="llama-3"), "llama-3", (0.0131, 0.0154)),
        (Resilience(gpu_failures_per_month=0.0244, failures_like="rsc-1"), "rsc-1", None),
        (Resilience(gpu_failures_per_month=0.08, failures_like="pessimistic"), "pessimistic", None),
        (Resilience(gpu_failures_per_month=0.03), "given", None),
        # 10 failures are 5.425 to 16.96 at 90 %, in 1,000 days of a GPU and a month of 30.
        (
            Resilience(gpu_failures_per_month=0.3, counted=CountedFailures(failures=10, gpu_days=1000.0)),
            "counted",
            (0.16275, 0.5088),
        ),
    ],
)
def test_a_rate_is_told_with_its_source_and_what_bounds_it(given: Resilience, source: str, interval):
    assert resilience.failure_rate_source(given) == source
    assert resilience.failure_interval(given) == (None if interval is None else pytest.approx(interval, rel=0.01))
