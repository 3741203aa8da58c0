"""Numbers and times in sentences are written out, in units that suit them."""

from __future__ import annotations

import pytest

from plimsoll.planners.ground.figures import count_in_words, counted, duration, figure, listed


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (9.05, "9.05"),
        (999.6, "1,000"),
        (1_184.3, "1,180"),
        (25_500_000, "25,500,000"),
        (0.000012345, "0.0000123"),
        (float("inf"), "Infinity"),
    ],
)
def test_a_number_is_written_out_without_a_power_of_ten(value: float, text: str):
    assert figure(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (2e-7, "0.2 us"),
        (0.0099996, "10 ms"),
        (0.99951, "1 s"),  # three digits round it up to a second, which is no 1,000 ms
        (75, "75 s"),
        (119.9, "2 min"),
        (1_184.3, "19.7 min"),
        (3_599.9, "1 h"),
        (7_973.304, "2.21 h"),
        (172_799, "2 days"),
        (86_400 * 5_000, "5,000 days"),
    ],
)
def test_a_time_is_in_the_largest_unit_that_suits_it(seconds: float, text: str):
    assert duration(seconds) == text


def test_a_time_has_as_many_digits_as_asked():
    assert duration(0.200_04, digits=5) == "200.04 ms"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (7e9, "7 billion"),
        (8.03e9, "8.03 billion"),
        (999_999_999, "1 billion"),
        (1.2e12, "1.2 trillion"),
        (2048, "2,050"),
    ],
)
def test_large_counts_are_in_words(number: float, text: str):
    assert count_in_words(number) == text


def test_one_of_a_thing_has_no_plural():
    assert [counted(number, "GPU") for number in (1, 2, 2048)] == ["1 GPU", "2 GPUs", "2,048 GPUs"]


def test_a_list_has_one_and_before_its_last():
    assert [listed(["a"]), listed(["a", "b"], "or"), listed(["a", "b", "c"])] == ["a", "a or b", "a, b and c"]
