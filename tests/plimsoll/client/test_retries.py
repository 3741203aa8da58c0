from __future__ import annotations

from datetime import UTC, datetime

import pytest

from plimsoll.client.errors import Refused, UnexpectedAnswer, Unreachable
from plimsoll.client.retries import Retries, retry_after_seconds
from plimsoll.service.ground.problems import Problem

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
HALF = Retries(draw=lambda: 0.5, first_wait_seconds=1.0, longest_wait_seconds=3.0)


def refused(status: int, after: float | None = None) -> Refused:
    problem = Problem(type="t", title="t", status=status, detail="d", code="c")
    return Refused(problem, retry_after_seconds=after)


@pytest.mark.parametrize(("retried", "seconds"), [(0, 0.5), (1, 1.0), (2, 1.5)])
def test_waits_double_until_the_longest_and_are_drawn_below_it(retried: int, seconds: float):
    # Half of 1, of 2, and of 3, which 4 is cut to.
    assert HALF.wait_seconds(Unreachable("x"), retried=retried, is_repeatable=True) == seconds


def test_after_the_last_retry_there_is_no_wait():
    assert HALF.wait_seconds(Unreachable("x"), retried=3, is_repeatable=True) is None


@pytest.mark.parametrize(
    ("status", "is_repeatable", "is_retried"),
    [(429, False, True), (503, True, True), (503, False, False), (502, True, True), (504, True, False),
     (500, True, False), (422, True, False), (501, True, False)],
)  # fmt: skip
def test_only_what_may_pass_is_sent_again(status: int, is_repeatable: bool, is_retried: bool):
    seconds = HALF.wait_seconds(refused(status), retried=0, is_repeatable=is_repeatable)
    assert (seconds is not None) == is_retried


def test_a_broken_connection_repeats_only_what_may_be_done_twice():
    assert HALF.wait_seconds(Unreachable("x"), retried=0, is_repeatable=False) is None
    assert HALF.wait_seconds(UnexpectedAnswer("x"), retried=0, is_repeatable=True) is None


@pytest.mark.parametrize(("asked", "waited"), [(2.0, 2.0), (3.0, 3.0), (3.1, None)])
def test_what_the_service_asks_is_waited_in_full_or_not_at_all(asked: float, waited: float | None):
    assert HALF.wait_seconds(refused(429, asked), retried=0, is_repeatable=True) == waited


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, None), ("7", 7.0), ("soon", None), ("Thu, 01 Jan 2026 12:00:30 GMT", 30.0),
     ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0), ("Thu, 01 Jan 2026 12:00:30 -0000", 30.0)],
)  # fmt: skip
def test_a_wait_is_seconds_or_a_date(value: str | None, seconds: float | None):
    assert retry_after_seconds(value, now=NOW) == seconds
