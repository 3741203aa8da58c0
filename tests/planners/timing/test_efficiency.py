import pytest

from plimsoll.planners.ground.data_files import record
from plimsoll.planners.ground.errors import UnknownName
from plimsoll.planners.stacks.profile import stack_names
from plimsoll.planners.timing import efficiency
from plimsoll.planners.timing.efficiency import CommonEfficiency, StackEfficiency, load_efficiency
from plimsoll.planners.timing.fusion import FUSED

FRACTIONS = (
    "matmul_peak_fraction",
    "low_precision_peak_fraction",
    "attention_peak_fraction",
    "memory_bandwidth_fraction",
    "link_fraction",
    "network_fraction",
)


def test_a_card_is_found_by_the_start_of_its_id():
    assert load_efficiency("megatron", "a100-pcie-40gb").gpu.name == "ampere"
    assert load_efficiency("megatron", "gb200-nvl-186gb").gpu.name == "blackwell"
    assert load_efficiency("megatron", "gb300-nvl-279gb").gpu.name == "blackwell-ultra"


def test_blackwell_cards_without_nvlink_are_timed_by_their_own_operators():
    # Measured products reach 0.79 of an RTX PRO 6000's peak and 0.67 of a B200's.
    card, board = (load_efficiency("megatron", name).gpu for name in ("rtx-pro-6000-server-96gb", "b200-sxm-180gb"))
    assert card == load_efficiency("megatron", "rtx-5090-32gb").gpu
    assert card.matmul_peak_fraction > board.matmul_peak_fraction
    assert "No training run" in card.provenance


def test_a_card_of_no_measured_generation_says_so():
    assert "No card of this generation was measured" in load_efficiency("megatron", "mi300x-192gb").provenance


def test_the_textbook_times_what_names_no_stack_and_an_unknown_one_is_refused():
    assert load_efficiency().stack.name == "reference"
    with pytest.raises(UnknownName, match="megatron"):
        load_efficiency("megatorn")


def test_a_stack_like_another_takes_its_kernels_and_keeps_its_own_band():
    own, kin = load_efficiency("accelerate").stack, load_efficiency("composer").stack
    assert own.traffic_multiple == kin.traffic_multiple
    assert not own.measured
    assert own.low < kin.low < 1 < own.high != kin.high
    assert load_efficiency("accelerate").band(experts=False) == (own.low, own.high)


@pytest.mark.parametrize("name", sorted(efficiency._gpus()))
def test_what_cards_reach_is_above_nothing_and_at_most_the_datasheet(name: str):
    card = efficiency._gpus()[name]
    assert all(0 < getattr(card, key) <= 1 for key in FRACTIONS)
    assert card.provenance


@pytest.mark.parametrize("name", stack_names())
def test_what_stacks_hide_is_a_part_and_their_bands_hold_the_estimate(name: str):
    stack = load_efficiency(name).stack
    assert 0 <= stack.data_overlap_fraction <= 1
    assert 0 <= stack.tensor_overlap_fraction <= 1
    assert 0 < stack.low < 1 < stack.high
    assert 0 < stack.expert_low < 1 < stack.expert_high
    assert stack.provenance
    assert stack.measured_kernels in FUSED


@pytest.mark.parametrize("name", stack_names())
def test_a_stack_that_nobody_timed_has_no_narrower_a_band_than_the_textbook(name: str):
    stack, sums = load_efficiency(name).stack, load_efficiency().stack
    assert stack.measured or (stack.low <= sums.low and sums.high <= stack.high)
    assert stack.measured or (stack.expert_low <= sums.expert_low and sums.expert_high <= stack.expert_high)


def test_a_file_with_a_missing_or_unknown_key_raises():
    with pytest.raises(ValueError, match="coverage"):
        record(CommonEfficiency, {})
    whole = dict.fromkeys(StackEfficiency.__dataclass_fields__, 1)
    with pytest.raises(ValueError, match="luck"):
        record(StackEfficiency, {**whole, "luck": 1})
