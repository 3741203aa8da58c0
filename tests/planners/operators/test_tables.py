from dataclasses import replace

import numpy as np
import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.operators import products
from plimsoll.planners.operators.tables import encoded, find, measured_cards, member_name, release_order


def found(card, engine, *wanted):
    gpu = catalogue().gpu(card)
    return find(gpu, products.OPERATOR, engine, [wanted], products.GRID, products.roofline)


def test_every_measured_card_is_in_the_catalogue():
    assert len(measured_cards()) == 9
    assert all(catalogue().gpu(card).id == card for card in measured_cards())


def test_a_measured_cards_own_table_comes_first():
    _, evidence = found("h100-sxm-80gb", "sglang", "bfloat16")

    assert (evidence.card, evidence.engine) == ("h100-sxm-80gb", "sglang")
    assert evidence.is_own_card
    assert evidence.is_own_engine


def test_what_was_found_is_kept_for_a_card_of_the_same_rates_alone():
    gpu = catalogue().gpu("rtx-4090-24gb")
    slower = replace(gpu, memory_bytes_per_second=gpu.memory_bytes_per_second / 2)

    def surface(of):
        return find(of, products.OPERATOR, "vllm", [("bfloat16",)], products.GRID, products.roofline)[0]

    assert surface(gpu) is surface(replace(gpu, name="another name"))
    assert surface(slower).seconds(1, 8192, 8192) > 1.5 * surface(gpu).seconds(1, 8192, 8192)


def test_a_card_without_a_table_is_scaled_from_the_nearest():
    _, evidence = found("rtx-4090-24gb", "vllm", "bfloat16")

    assert evidence.card == "l40s-48gb"
    assert not evidence.is_own_card


def test_another_engine_stands_in_where_one_was_not_measured():
    # vLLM's products by blocks were timed eagerly and left out.
    _, evidence = found("h100-sxm-80gb", "vllm", "fp8_block")

    assert evidence.engine == "sglang"
    assert evidence.is_own_card
    assert not evidence.is_own_engine


def test_products_measured_without_their_tuning_have_another_engines_stand_in():
    _, evidence = found("b200-sxm-180gb", "tensorrt-llm", "nvfp4")

    assert (evidence.card, evidence.engine) == ("b200-sxm-180gb", "sglang")
    assert not evidence.is_own_engine


def test_a_variant_that_no_card_has_is_not_found():
    assert found("h100-sxm-80gb", "vllm", "fp8_double") is None
    assert not found("h100-sxm-80gb", "vllm", "nvfp4")[1].is_own_card
    assert found("b200-sxm-180gb", "vllm", "nvfp4")[1].is_own_card


@pytest.mark.parametrize(
    ("release", "order"),
    [("0.24.0", (0, 24, 0)), ("1.3.0rc20", (1, 3, 0)), ("0.5.6.post2", (0, 5, 6)), ("2.29.2", (2, 29, 2))],
)
def test_releases_are_in_the_order_of_their_numbers(release, order):
    assert release_order(release) == order


def test_values_are_kept_to_a_part_in_three_hundred():
    log2_seconds = np.log2([2e-6, 2.001e-6, 0.3])

    assert np.abs(encoded(log2_seconds) / 256 - np.log2(1e9) - log2_seconds).max() <= 1 / 512
    assert member_name("products", "vllm", "0.24.0", "fp8") == "products|vllm|0.24.0|fp8"
