import math

import pytest

from planners import resilience
from planners.questions import Resilience
from tests.planners.factories import LLAMA_7B, llama
from tests.planners.training_cases import job


def test_failures_a_day_grow_with_the_gpus():
    # 1,000 x 0.08 / 30 = 2.667.
    assert resilience.failures_per_day(1000, 0.08) == pytest.approx(2.667, abs=0.001)


def test_no_failures_mean_no_checkpoint_is_ever_due():
    between = resilience.mean_seconds_between_failures(1000, 0.0)
    assert math.isinf(between)
    interval = resilience.checkpoint_interval_seconds(60, between)
    assert math.isinf(interval)
    kept = resilience.goodput(
        interval_seconds=interval, checkpoint_seconds=60, restart_seconds=600, mean_between_failures=between
    )
    assert kept == 1.0


def test_young_daly_is_the_root_of_twice_delta_m():
    # √(2 x 50 s x 32,400 s) = 1,800 s.
    assert resilience.checkpoint_interval_seconds(50, 32_400) == pytest.approx(1800)


def test_goodput_pays_for_saving_restarting_and_half_an_interval():
    # Saving 50 of 1,850 s; each 32,400 s lose 600 + 900 s.
    expected = (1 - 50 / 1850) * (1 - 1500 / 32_400)
    kept = resilience.goodput(
        interval_seconds=1800, checkpoint_seconds=50, restart_seconds=600, mean_between_failures=32_400
    )
    assert kept == pytest.approx(expected)


def test_goodput_is_never_below_zero():
    lost = resilience.goodput(
        interval_seconds=1800, checkpoint_seconds=50, restart_seconds=600, mean_between_failures=100
    )
    assert lost == 0.0


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
