from collections.abc import Mapping
from dataclasses import replace

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.data_files import record
from plimsoll.planners.ground.errors import UnknownName
from plimsoll.planners.ground.hardware import SiteEfficiency
from plimsoll.planners.stacks.profile import stack_names
from plimsoll.planners.timing import efficiency
from plimsoll.planners.timing.efficiency import CommonEfficiency, StackEfficiency, efficiency_on, load_efficiency
from plimsoll.planners.timing.fusion import FUSED
from tests.planners.factories import hardware

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
    assert "No card of this generation was measured" in load_efficiency("megatron", "l4-24gb").provenance


def test_an_amd_card_reaches_what_was_measured_of_its_products():
    # 620 of 1,307.4 TFLOP/s in 16 bits are 0.474, and 990 of 2,614.9 in FP8 0.379.
    card = load_efficiency("megatron", "mi300x-192gb").gpu
    assert card.matmul_peak_fraction == pytest.approx(620 / 1307.4, abs=0.005)
    assert card.low_precision_peak_fraction == pytest.approx(990 / 2614.9, abs=0.005)
    assert "No training run was fitted on an AMD card" in card.provenance


@pytest.mark.parametrize(
    ("framework", "card", "timed_runs"),
    [
        ("megatron", "h100-sxm-80gb", "stack_on_gpu"),
        ("nanotron", "b200-sxm-180gb", "other_stacks_on_gpu"),
        ("ddp", "a100-sxm-80gb", "other_stacks_on_gpu"),
        ("megatron", "h200-sxm-141gb", "none_on_gpu"),
        ("megatron", "mi300x-192gb", "none_on_gpu"),
    ],
)
def test_what_was_timed_of_a_stack_on_a_card_is_known(framework: str, card: str, timed_runs: str):
    assert load_efficiency(framework, card).timed_runs == timed_runs


@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("name", stack_names())
def test_a_card_that_nobody_timed_has_no_narrower_a_band_than_cards_had_that_a_fit_had_not_seen(
    name: str, *, experts: bool
):
    # Nine in ten took 0.80 to 1.41 times the estimate, with experts 0.73 to 1.94.
    low, high = load_efficiency(name, "l4-24gb").band(experts=experts)
    stack = load_efficiency(name).band(experts=experts)
    assert low == min(stack[0], 0.73 if experts else 0.80)
    assert high == max(stack[1], 1.94 if experts else 1.41)


def site(**measured: Mapping[str, float]) -> SiteEfficiency:
    return SiteEfficiency(**{"revision": "1", "fractions": {}, "spread": {}, "provenance": "a site's", **measured})


def test_a_site_that_measured_its_card_is_not_told_that_nobody_did():
    l4 = hardware(8, gpu=catalogue().gpu("l4-24gb"))
    assert efficiency_on("megatron", l4).timed_runs == "none_on_gpu"
    own = efficiency_on("megatron", replace(l4, site=site(spread={"megatron": 1.0})))
    assert own.timed_runs == "own"
    assert own.band(experts=False) == load_efficiency("megatron").band(experts=False)
    # Who measured only what it serves has timed no training.
    assert efficiency_on("megatron", replace(l4, site=site())).timed_runs == "none_on_gpu"


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
    assert stack.band_reason
    assert stack.measured or not stack.measured_on
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
