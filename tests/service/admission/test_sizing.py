"""Plans made in passing."""

from __future__ import annotations

import pytest

from planners.catalogue import catalogue
from planners.errors import PlanningStopped
from service.admission import sizing
from service.admission.sizing import Sizer
from service.models import ModelResolver
from service.settings import Settings
from tests.api.questions import train


def test_a_search_that_nobody_waits_for_any_more_ends(monkeypatch: pytest.MonkeyPatch):
    sizer = Sizer(ModelResolver(catalogue(), Settings()), catalogue())
    monkeypatch.setattr(sizing, "LONGEST_SECONDS", 0.0)
    with pytest.raises(PlanningStopped):
        sizer.answer(train())
    # What came to no end is not remembered.
    monkeypatch.undo()
    assert sizer.answer(train()) is sizer.remembered(train())
