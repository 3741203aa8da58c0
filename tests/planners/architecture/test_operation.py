"""What an operation costs a token."""

from __future__ import annotations

import pytest

from plimsoll.planners.architecture import Operation, OperationKind


def attention(**fields: object) -> Operation:
    sizes = {"heads": 4, "key_dim": 8, "value_dim": 8}
    return Operation(name="attention", kind=OperationKind.ATTENTION, inputs=(), output="x", **{**sizes, **fields})  # type: ignore[arg-type]


def attended(sequence: int, **fields: object) -> float:
    # 2 x 4 heads x (8 + 8) features = 128 operations a position; (sequence + 1) / 2 positions on average.
    return attention(**fields).forward_flops_per_token((sequence + 1) / 2) / 128


@pytest.mark.parametrize("sequence", [1, 6, 7, 8, 9, 14, 15, 100])
@pytest.mark.parametrize("window", [1, 7, 8])
def test_a_window_costs_the_mean_of_what_each_token_sees(sequence: int, window: int) -> None:
    each = [min(token, window) for token in range(1, sequence + 1)]
    assert attended(sequence, window=window) == pytest.approx(sum(each) / sequence)


@pytest.mark.parametrize("sequence", [1, 6, 7, 8, 9, 14, 15, 100])
@pytest.mark.parametrize("chunk", [1, 7, 8])
def test_chunks_cost_the_mean_of_what_each_token_sees(sequence: int, chunk: int) -> None:
    each = [token % chunk + 1 for token in range(sequence)]
    assert attended(sequence, window=chunk, is_chunked=True) == pytest.approx(sum(each) / sequence)


def test_a_sequence_of_whole_chunks_costs_what_its_chunks_cost() -> None:
    # 3 chunks of 8 tokens: 3 x (1 + ... + 8) = 108 attended positions over 24 tokens, 4.5 a token.
    chunked = attention(window=8, is_chunked=True)
    assert chunked.forward_flops_per_token((24 + 1) / 2) == 128 * 108 / 24


def test_a_value_narrower_than_the_key_costs_less() -> None:
    # 2 x 4 x (8 + 2) = 80 operations a position.
    assert attention(value_dim=2).forward_flops_per_token(1) == 80


@pytest.mark.parametrize(("context", "attended"), [(4, 1), (64, 16), (132, 32 - 32 * 31 / 130)])
def test_positions_that_stand_for_four_tokens_are_a_quarter_as_many(context: int, attended: float) -> None:
    # 132 tokens on average are 33 positions of a sequence of 65: the first 32 see 1 to 32 of them, the rest 32.
    assert attention(window=32, tokens_per_position=4).forward_flops_per_token(context) == pytest.approx(128 * attended)
