import numpy as np
import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.operators.exchanges import COMBINE, DISPATCH, NORMAL, NVLINK_ONE_SIDED, exchange

H100, GB200 = catalogue().gpu("h100-sxm-80gb"), catalogue().gpu("gb200-nvl-186gb")
# Microseconds for DeepSeek-V3 (hidden 7168, top 8) of TensorRT-LLM's one-sided exchange among 8 GB200, in nvfp4.
MEASURED = [(1, 18.3, 25.3), (64, 18.9, 30.7), (1024, 64.2, 189.3)]


@pytest.mark.parametrize(("tokens", "dispatch", "combine"), MEASURED)
def test_exchanges_take_what_was_measured(tokens, dispatch, combine):
    for step, microseconds in ((DISPATCH, dispatch), (COMBINE, combine)):
        seconds = exchange(GB200, "tensorrt-llm", NVLINK_ONE_SIDED, step, 8).seconds(tokens, 7168, 8)
        assert seconds * 1e6 == pytest.approx(microseconds, rel=0.1)


def test_values_of_more_bytes_take_as_long_as_more_tokens():
    dispatch = exchange(GB200, "tensorrt-llm", NVLINK_ONE_SIDED, DISPATCH, 8)
    # 16 bits are 2 / 0.5625 times as many bytes as nvfp4.
    wide, many = dispatch.seconds(900, 7168, 8, value_bytes=2.0), dispatch.seconds(3200, 7168, 8)

    assert wide == pytest.approx(many)


def test_of_other_numbers_of_nodes_the_nearest_stands_in():
    assert exchange(H100, "sglang", NORMAL, COMBINE, 6).evidence.variant == "deepep_normal,combine,8"
    assert not exchange(H100, "vllm", NORMAL, COMBINE, 2).evidence.is_own_engine


def test_more_tokens_never_take_less():
    seconds = exchange(H100, "sglang", NORMAL, DISPATCH, 1).seconds(np.exp2(np.linspace(0, 18, 60)), 7168, 8)

    assert (np.diff(seconds) >= 0).all()


def test_another_cards_link_changes_what_is_sent_and_not_the_start():
    # H100's NVLink has half of GB200's rate: one token takes the same 18.3 us, many twice as long beyond them.
    theirs, ours = (exchange(gpu, "tensorrt-llm", NVLINK_ONE_SIDED, DISPATCH, 8) for gpu in (GB200, H100))
    start = float(theirs.seconds(1, 7168, 8))
    assert float(ours.seconds(1, 7168, 8)) == pytest.approx(start)
    assert float(ours.seconds(8192, 7168, 8)) - start == pytest.approx(
        2 * (float(theirs.seconds(8192, 7168, 8)) - start)
    )


def test_over_nodes_another_cards_exchange_stands_in_before_the_cards_own_in_one_node():
    found = exchange(catalogue().gpu("b200-sxm-180gb"), "sglang", NORMAL, DISPATCH, 4)
    assert (found.evidence.card, found.evidence.variant) == ("h100-sxm-80gb", "deepep_normal,dispatch,4")
