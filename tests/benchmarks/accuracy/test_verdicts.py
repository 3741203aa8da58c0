"""Verdicts against what happened."""

import pytest

from benchmarks.accuracy.verdicts import Outcome, verdict_table


def outcome(fits, ran, *, seen=False):
    return Outcome(group="a stack", is_seen=seen, fits=fits, ran=ran)


@pytest.mark.parametrize(
    ("fits", "ran", "right"),
    [
        (True, True, True),
        (False, False, True),
        (None, False, True),
        (True, False, False),
        (False, True, False),
        (None, True, False),
    ],
)
def test_a_refusal_is_right_where_the_run_failed(fits, ran, right):
    assert outcome(fits, ran).is_right is right


def test_each_outcome_has_its_column():
    every = [outcome(fits, ran) for ran in (True, False) for fits in (True, False, None)]
    line = [line for line in verdict_table(every) if "together" in line][1]
    # Three of six are right.
    assert line.split()[-7:] == ["1"] * 6 + ["50.0%"]
