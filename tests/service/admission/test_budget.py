"""What a review's time is spent on."""

import pytest

from plimsoll.service.admission.budget import Budget


# Of 8 s: advice until 6 s, three quarters.
@pytest.mark.parametrize(
    ("now", "is_too_late_for_advice", "is_spent"),
    [(105.9, False, False), (106.0, True, False), (107.9, True, False), (108.0, True, True), (109.0, True, True)],
)
def test_the_last_quarter_is_not_for_advice(now, is_too_late_for_advice, is_spent):
    budget = Budget(seconds=8.0, began_at=100.0, clock=lambda: now)
    assert (budget.is_too_late_for_advice(), budget.is_spent()) == (is_too_late_for_advice, is_spent)


def test_a_budget_begins_when_it_is_made():
    now = iter((5.0, 5.9, 6.0))
    budget = Budget.of(1.0, lambda: next(now))
    assert [budget.is_spent(), budget.is_spent()] == [False, True]
