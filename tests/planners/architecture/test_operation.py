"""What an operation costs a token."""

from __future__ import annotations

import pytest

from planners.architecture import Operation, OperationKind


def attention(**fields: object) -> Operation:
    sizes = {"heads": 4, "key_dim": 8, "value_dim": 8}
    return Operation(name="attention", kind=OperationKind.ATTENTION, inputs=(), output="x", **{**sizes, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(("context", "attended"), [(31, 31), (32, 32), (33, 32)])
def test_a_window_limits_what_a_token_attends_to(context: int, attended: int) -> None:
    # 2 x 4 heads x (8 + 8) features = 128 operations a position.
    assert attention(window=32).forward_flops_per_token(context) == 128 * attended


@pytest.mark.parametrize(("context", "attended"), [(16, 16), (16.5, 16.5), (17, 16.5), (10_000, 16.5)])
def test_in_chunks_a_token_sees_half_a_chunk_and_itself(context: float, attended: float) -> None:
    # The 32 tokens of a chunk see 1 to 32 tokens: 16.5 on average, however long the sequence is.
    assert attention(window=32, is_chunked=True).forward_flops_per_token(context) == 128 * attended


def test_a_sequence_of_whole_chunks_costs_what_its_chunks_cost() -> None:
    # 3 chunks of 8 tokens: 3 x (1 + ... + 8) = 108 attended positions over 24 tokens, 4.5 a token.
    chunked = attention(window=8, is_chunked=True)
    assert chunked.forward_flops_per_token((24 + 1) / 2) == 128 * 108 / 24


def test_a_value_narrower_than_the_key_costs_less() -> None:
    # 2 x 4 x (8 + 2) = 80 operations a position.
    assert attention(value_dim=2).forward_flops_per_token(1) == 80


@pytest.mark.parametrize(("context", "attended"), [(4, 1), (127, 31.75), (128, 32), (132, 32)])
def test_positions_that_stand_for_four_tokens_are_a_quarter_as_many(context: int, attended: float) -> None:
    assert attention(window=32, tokens_per_position=4).forward_flops_per_token(context) == 128 * attended
