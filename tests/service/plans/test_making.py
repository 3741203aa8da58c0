import pytest

from plimsoll.planners.ground.stopping import never
from plimsoll.service.plans import making


def test_advice_ends_when_nobody_waits_or_its_time_is_over(monkeypatch: pytest.MonkeyPatch):
    assert making._plan_is_due(lambda: True)()
    assert not making._plan_is_due(never)()
    monkeypatch.setattr(making, "MOST_SECONDS_TO_ADVISE", 0.0)
    assert making._plan_is_due(never)()
