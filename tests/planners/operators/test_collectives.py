import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.operators.collectives import ALL_GATHER, ALL_REDUCE, collective

MIB = 2**20


# Microseconds of an engine's own all-reduce of 8 ranks in a graph (the tables' own summary).
@pytest.mark.parametrize(
    ("card", "engine", "sent", "microseconds"),
    [
        ("h200-sxm-141gb", "vllm", 4096, 4.8),
        ("h200-sxm-141gb", "sglang", MIB, 13.1),
        ("b200-sxm-180gb", "vllm", 16 * MIB, 63),
        ("b200-sxm-180gb", "tensorrt-llm", 4096, 5.8),
    ],
)
def test_small_all_reduces_are_the_engines_own(card, engine, sent, microseconds):
    seconds = collective(catalogue().gpu(card), engine, ALL_REDUCE, 8).seconds(sent)

    assert seconds * 1e6 == pytest.approx(microseconds, rel=0.1)


def test_large_messages_reach_nccls_bus_bandwidth():
    gpu = catalogue().gpu("h100-sxm-80gb")
    reduced = collective(gpu, "vllm", ALL_REDUCE, 8).seconds(512 * MIB)
    gathered = collective(gpu, "vllm", ALL_GATHER, 8).seconds(512 * MIB)

    assert 2 * 7 / 8 * 512 * MIB / reduced == pytest.approx(445e9, rel=0.05)
    assert 7 / 8 * 512 * MIB / gathered == pytest.approx(335.2e9, rel=0.05)


def test_other_numbers_of_ranks_take_the_nearest():
    found = collective(catalogue().gpu("h100-sxm-80gb"), "sglang", ALL_REDUCE, 6)

    assert {each.variant for each in found.evidence} <= {"all_reduce,4", "all_reduce,8"}


def test_an_unknown_operation_is_an_error():
    with pytest.raises(KeyError):
        collective(catalogue().gpu("h100-sxm-80gb"), "vllm", "all_hope", 8)
