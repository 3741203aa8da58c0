import pytest

from plimsoll.planners.timing.utilization import highest_utilization
from tests.planners.training_cases import job


def test_the_highest_public_run_is_known_by_card_and_kind_of_model():
    # NVIDIA's 405B on 576 H100: 52.2 % of 989 TFLOP/s.
    highest = highest_utilization("h100-sxm-80gb", job("megatron"))
    assert highest is not None
    assert highest.fraction == pytest.approx(0.522)
    assert "576 H100" in highest.run


def test_a_card_that_nobody_published_a_run_of_has_none():
    assert highest_utilization("test-80gb", job("megatron")) is None


def test_adapters_are_compared_with_nothing():
    assert highest_utilization("h100-sxm-80gb", job("accelerate", method="lora")) is None
