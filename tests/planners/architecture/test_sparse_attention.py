"""What choosing tokens costs, and what is saved by attending to the chosen ones alone."""

from __future__ import annotations

import dataclasses

import pytest

from plimsoll.planners.architecture import Split
from plimsoll.planners.architecture.decoder import latent_attention_half
from plimsoll.planners.architecture.latent_attention import LatentAttention
from plimsoll.planners.architecture.sparse_attention import TokenIndexer, indexer_operations, indexer_weights

INDEXER = TokenIndexer(hidden_size=64, query_rank=40, heads=4, head_dim=6, chosen_tokens=16)
ATTENTION = LatentAttention(
    hidden_size=64,
    heads=8,
    query_rank=40,
    key_value_rank=24,
    nope_dim=12,
    rope_dim=4,
    value_dim=10,
    chosen_tokens=16,
)


def test_the_indexer_stands_whole_on_every_rank() -> None:
    weights = indexer_weights("i", INDEXER)
    # Queries 24 x 40, key 6 x 64, weights 4 x 64, norm 2 x 6.
    assert sum(weight.elements for weight in weights) == 960 + 384 + 256 + 12
    assert {weight.split for weight in weights} == {Split.REPLICATED}


def test_scoring_a_position_costs_a_dot_product_and_a_weight_for_each_head() -> None:
    # 2 x 4 heads x (6 + 1) = 56 operations a position; projections 2 x (960 + 384 + 256) = 3,200.
    operations = indexer_operations(INDEXER)
    assert sum(op.forward_flops_per_token(0) for op in operations) == 3200
    assert sum(op.forward_flops_per_token(100) for op in operations) == 3200 + 5600


def test_attention_reads_no_more_than_the_chosen_tokens() -> None:
    def attended(tokens: float) -> float:
        core = next(op for op in latent_attention_half(ATTENTION).operations if op.name == "attention")
        return core.forward_flops_per_token(tokens)

    # 2 x 8 heads x (16 + 10) = 416 operations a position, of 16 positions at most; a mean of 8.5 is a
    # sequence of 16, one of 1,000 of 1,999: 16 - 16 x 15 / 3,998.
    expected = [416 * 8, 416 * 8.5, 416 * (16 - 240 / 3998)]
    assert [attended(tokens) for tokens in (8, 8.5, 1000)] == pytest.approx(expected)


def test_every_tensor_of_the_half_is_described_and_computed_before_it_is_read() -> None:
    half = latent_attention_half(ATTENTION, INDEXER)
    named = {tensor.name for tensor in half.tensors}
    known = {"attention_input"}
    for operation in half.operations:
        assert set(operation.inputs) <= known | {"value"}
        known.add(operation.output)
    assert known <= named


def test_without_an_indexer_the_half_is_latent_attentions_own() -> None:
    whole = dataclasses.replace(ATTENTION, chosen_tokens=None)
    assert not any("index" in op.name for op in latent_attention_half(whole).operations)
