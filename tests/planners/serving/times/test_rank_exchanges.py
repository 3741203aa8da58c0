"""Tests of what ranks exchange: which collectives and sends they are, listed by hand."""

from __future__ import annotations

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.operators.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, collective
from plimsoll.planners.operators.exchanges import COMBINE, DISPATCH, NORMAL, NVLINK_ONE_SIDED, exchange
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.times.curve import SIZES
from plimsoll.planners.serving.times.rank_exchanges import ExchangeKinds, exchanges
from tests.planners.serving.factories import H100, MIXTRAL
from tests.planners.serving.times.test_rank_operators import rank


def test_each_layer_sums_twice_over_its_ranks():
    found = exchanges(rank(tensor_parallel=4), Degrees(tensor_parallel=4), 8)
    assert found.kernels == 64
    assert found.seconds == pytest.approx(64 * collective(H100, "vllm", ALL_REDUCE, 4).seconds(SIZES * 8192))


def test_ranks_of_attention_gather_their_tokens_and_scatter_the_sums():
    # No tensor ranks: 32 mixtures gather and scatter the tokens of all 4 ranks.
    found = exchanges(rank(MIXTRAL), Degrees(attention_data_parallel=4, expert_parallel=4), 8)
    pair = [collective(H100, "vllm", name, 4).seconds(4 * SIZES * 8192) for name in (ALL_GATHER, REDUCE_SCATTER)]
    assert found.seconds == pytest.approx(32 * (pair[0] + pair[1]))
    assert found.kernels == 64


NVLINK = ExchangeKinds(in_domain=NVLINK_ONE_SIDED, between_nodes=NORMAL)


def test_ranks_with_whole_experts_send_each_token_to_those_of_its_own():
    gb200 = catalogue().gpu("gb200-nvl-186gb")
    one = rank(MIXTRAL, gpu=gb200, engine="tensorrt-llm")
    found = exchanges(one, Degrees(attention_data_parallel=4, expert_parallel=4), 4, NVLINK)
    dispatch, combine = (exchange(gb200, "tensorrt-llm", NVLINK_ONE_SIDED, step, 4) for step in (DISPATCH, COMBINE))
    # 32 layers of 4,096 features, two experts a token; sent in 16 bits, measured in nvfp4.
    each = dispatch.seconds(SIZES, 4096, 2, value_bytes=2.0) + combine.seconds(SIZES, 4096, 2)
    assert found.seconds == pytest.approx(32 * each)
    assert found.kernels == 64


@pytest.mark.parametrize(
    ("gpu", "degrees", "expected"),
    [
        ("h100-sxm-80gb", Degrees(attention_data_parallel=8, expert_parallel=8), NVLINK_ONE_SIDED),
        ("h100-sxm-80gb", Degrees(attention_data_parallel=16, expert_parallel=16), NORMAL),
        # Experts that are cut, and cards without NVLink.
        ("h100-sxm-80gb", Degrees(attention_data_parallel=8, expert_parallel=4), None),
        ("l40s-48gb", Degrees(attention_data_parallel=8, expert_parallel=8), None),
    ],
)
def test_what_tokens_are_sent_by_follows_from_where_ranks_lie(gpu, degrees, expected):
    assert NVLINK.of(catalogue().gpu(gpu), degrees, 8) == expected


def test_ranks_on_several_nodes_send_over_the_network():
    # Each of 64 sums sends 2 x 15/16 of 8,192 B a token at 50 GB/s.
    found = exchanges(rank(tensor_parallel=16), Degrees(tensor_parallel=16), 8)
    assert found.seconds[0] == pytest.approx(64 * 2 * 15 / 16 * 8192 / 50e9)


def test_one_rank_exchanges_nothing():
    assert exchanges(rank(), Degrees(), 8).kernels == 0
