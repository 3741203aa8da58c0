"""Products of a training step by measured ones."""

import numpy as np
import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.timing.products import (
    EIGHT_BITS,
    FLAT,
    LONG_SIDE,
    MOST_LOG2_TOKENS,
    SIXTEEN_BITS,
    places,
    product_lines,
    product_shapes,
)
from tests.planners.training_cases import job

PRODUCTS = tuple(op for op in job("reference").layers[0].block.operations if op.matmul_shape)
DEGREES = (1, 2, 8)
TOKENS = np.array([1.0, 3.0, 96.0, 1024.0, 1500.0, 4096.0, 2.0**20, 2.0**25])


def shapes(card, number_format=SIXTEEN_BITS):
    return ByIdentity(product_shapes(ByIdentity(catalogue().gpu(card)), number_format))


def operations(card, tokens, degree, which="backward", number_format=SIXTEEN_BITS):
    lines = product_lines(ByIdentity(PRODUCTS), DEGREES, shapes(card, number_format), is_routed=False)
    place = places(tokens, np.full(tokens.shape, DEGREES.index(degree)))
    return getattr(lines, which).at(tokens, place)


def test_without_measured_sizes_operations_are_those_of_the_model():
    lines = product_lines(ByIdentity(PRODUCTS), DEGREES, ByIdentity(FLAT), is_routed=False)
    per_token = sum(2.0 * op.matmul_shape[0] * op.matmul_shape[1] for op in PRODUCTS)
    place = places(TOKENS, np.full(TOKENS.shape, 1))
    np.testing.assert_allclose(lines.forward.at(TOKENS, place), TOKENS * per_token / 2)
    np.testing.assert_allclose(lines.backward.at(TOKENS, place), 2 * TOKENS * per_token / 2)


@pytest.mark.parametrize("number_format", [SIXTEEN_BITS, EIGHT_BITS])
@pytest.mark.parametrize("card", ["a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm-180gb", "l40s-48gb", "rtx-4090-24gb"])
def test_more_tokens_take_longer_and_never_longer_a_token(card, number_format):
    # What bounds a mesh by its largest micro-batch, and its pipeline's filling by its smallest, rests on both.
    for degree in DEGREES:
        for which in ("forward", "backward"):
            found = operations(card, TOKENS, degree, which, number_format)
            assert (np.diff(found) > 0).all()
            assert (np.diff(found / TOKENS) <= 1e-9 * (found / TOKENS)[:-1]).all()


def test_a_long_product_is_the_measure_of_all_others():
    side = np.array([LONG_SIDE])
    assert shapes("h100-sxm-80gb").value.multiple(side, side, side)[0] == pytest.approx(1.0)


def test_few_tokens_and_narrow_shards_are_slower():
    per_token = operations("h100-sxm-80gb", TOKENS, 1) / TOKENS
    assert per_token[1] > 10 * per_token[5]
    # Eight ranks have an eighth of the operations each, in narrower products.
    assert 8 * operations("h100-sxm-80gb", TOKENS, 8)[5] > operations("h100-sxm-80gb", TOKENS, 1)[5]


def test_tokens_between_powers_of_two_stand_on_the_line_between_them():
    below, between, above = operations("h100-sxm-80gb", np.array([1024.0, 1536.0, 2048.0]), 2)
    assert between == pytest.approx((below + above) / 2)


def test_a_place_is_that_of_the_power_of_two_below():
    tokens = np.array([1.0, 1023.0, 1024.0, 2.0**40])
    expected = [0, 9, 10, MOST_LOG2_TOKENS - 1]
    np.testing.assert_array_equal(places(tokens, np.ones(4, dtype=np.int64)), MOST_LOG2_TOKENS + np.array(expected))


def test_blocks_without_experts_have_no_routed_products():
    assert product_lines(ByIdentity(PRODUCTS), DEGREES, ByIdentity(FLAT), is_routed=True) is None
