"""A small Mixtral of four experts, two of them for each token.

A layer's matrices in rows over 4 ranks: q and o 64/4 = 16, k and v 32/4 = 8: 48 x 64 = 3,072 elements; the router
4/4 x 64 = 64; two norms 16 each. The experts' first two matrices are [4, 64, 64] and the last [4, 64, 32]: of one
expert 4,096 and 2,048. Outside: embedding and head ceil(101/4) = 26 rows x 64 = 1,664 each, last norm 16.
"""

import pytest

from plimsoll.service.worker.recording.ledger import Kind
from tests.service.worker.cases import config, requested_bytes, traced

EXPERT = 4096 + 2048
LAYER_BESIDE = 3072 + 64 + 32
OUTSIDE = 2 * 1664 + 16
MIXTRAL = config(
    model_type="mixtral", intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=None
)
EXCHANGE = "_c10d_functional::all_to_all_single"


def mixture(**changes):
    return traced(**({"config": MIXTRAL, "framework": "fsdp2"} | changes))


def exchanges(ledger, phase):
    ((start, end),) = [(start, end) for mark, start, end in ledger.phase_ranges() if (mark.step, mark.phase) == phase]
    return sum(event.piece.origin == EXCHANGE and not event.is_release for event in ledger.events[start:end])


@pytest.mark.slow
class TestMixture:
    def test_each_of_four_ranks_has_one_of_four_experts(self):
        elements = 2 * (LAYER_BESIDE + EXPERT) + OUTSIDE
        ledger = mixture()
        assert requested_bytes(ledger, Kind.PARAMETER) == 4 * elements
        assert requested_bytes(ledger, Kind.GRADIENT) == 4 * elements

    def test_of_more_ranks_than_experts_torchtitan_cuts_each_expert(self):
        # Over 8 ranks: q and o 8 rows, k and v 4, the router one of its four (padded), norms 8, vocabulary 13 rows.
        beside = 2 * (24 * 64 + 64 + 16) + 2 * 13 * 64 + 8
        assert requested_bytes(mixture(data_parallel=8), Kind.PARAMETER) == 4 * (beside + 2 * 4 * EXPERT // 8)

    def test_of_more_ranks_than_experts_accelerate_pads_whole_ones(self):
        beside = 2 * (24 * 64 + 64 + 16) + 2 * 13 * 64 + 8
        ledger = mixture(data_parallel=8, framework="accelerate")
        assert requested_bytes(ledger, Kind.PARAMETER) == 4 * (beside + 2 * EXPERT)


@pytest.fixture(scope="module")
def dealt():
    return mixture(expert_parallel=2)


@pytest.mark.slow
class TestExpertParallelism:
    def test_experts_of_a_rank_are_divided_over_the_ranks_that_hold_the_same(self, dealt):
        # Two of four experts on a rank, each cut over two ranks: as many elements as one whole expert.
        assert requested_bytes(dealt, Kind.PARAMETER) == 4 * (2 * (LAYER_BESIDE + EXPERT) + OUTSIDE)

    def test_tokens_go_to_their_experts_and_back_in_both_passes(self, dealt):
        # Two layers, there and back.
        assert exchanges(dealt, (1, "forward")) == 4
        assert exchanges(dealt, (1, "backward")) == 4

    def test_without_it_none_is_sent(self):
        assert exchanges(mixture(), (1, "forward")) == 0

    def test_where_a_score_scales_shared_experts_uneven_ones_are_gathered_in_the_second_run(self):
        # Three experts on each of two ranks, over two ranks that hold the same; both passes send there and back.
        uneven = MIXTRAL | {"model_type": "qwen2_moe", "num_experts": 6, "moe_intermediate_size": 32}
        ledger = mixture(config=uneven, expert_parallel=2, recompute="selective")
        assert exchanges(ledger, (1, "forward")) == exchanges(ledger, (1, "backward")) == 4

    def test_biases_lie_where_their_experts_do(self):
        kinds = {"layer_types": ["full_attention"] * 2, "sliding_window": 8}
        sizes = {"model_type": "gpt_oss", "num_key_value_heads": 4} | kinds
        whole, halves = (mixture(config=MIXTRAL | sizes, data_parallel=2, expert_parallel=ranks) for ranks in (1, 2))
        # Cut over both ranks or dealt out to them: two of four experts' matrices and biases each.
        assert requested_bytes(halves, Kind.PARAMETER) == requested_bytes(whole, Kind.PARAMETER)
        assert exchanges(halves, (1, "forward")) == exchanges(halves, (1, "backward")) == 4
