import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.timing.efficiency import load_efficiency
from plimsoll.planners.timing.ties import are_tied, tie_fraction
from tests.planners.factories import hardware

H100 = hardware(8, gpu=catalogue().gpu("h100-sxm-80gb"))


def test_layouts_of_one_stack_are_told_apart_by_its_own_measured_pairs():
    stack = load_efficiency("nanotron").stack
    assert tie_fraction("nanotron", "nanotron", H100, experts=False) == stack.tie_fraction
    assert tie_fraction("nanotron", "nanotron", H100, experts=True) == stack.expert_tie_fraction


def test_layouts_of_two_stacks_are_told_apart_by_both_bands():
    # Both 0.65 to 1.55: half of ln(1.55 / 0.65) is 0.43452, both together 0.43452 x √2 = 0.61450. Nine of ten of a
    # normal distribution lie within 1.64485 standard deviations, and nine of ten below 1.28155. Thus
    # 0.61450 x 1.28155 / 1.64485 = 0.47878, and e^0.47878 = 1.6141.
    assert tie_fraction("ddp", "litgpt", H100, experts=False) == pytest.approx(0.6141, abs=1e-4)


@pytest.mark.parametrize(
    ("other", "is_tied"), [(124.9, True), (125.0, True), (125.1, False), (80.0, True), (79.9, False)]
)
def test_a_tie_ends_at_its_fraction_in_both_directions(other: float, *, is_tied: bool):
    # 100 x 1.25 = 125 and 100 / 1.25 = 80.
    assert are_tied(100.0, other, 0.25) is is_tied
