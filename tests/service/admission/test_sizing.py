"""Plans made in passing."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.errors import PlanningStopped
from plimsoll.service.admission.budget import Budget
from plimsoll.service.admission.sizing import Sizer
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.resolving import ModelResolver
from tests.api.questions import infer, train

SECONDS = 8.0
PLENTY = Budget(seconds=SECONDS, began_at=0.0, clock=lambda: 0.0)
SPENT = Budget(seconds=SECONDS, began_at=0.0, clock=lambda: SECONDS)
# Three quarters are over: time for the answer, none for advice.
LATE = Budget(seconds=SECONDS, began_at=0.0, clock=lambda: 6.0)
TOO_LARGE = {
    "train": train(model="llama-3.1-70b", hardware={"gpu": "h100-sxm-80gb", "gpus": 2}, layout={"offload": "none"}),
    "infer": infer(model="llama-3.1-70b", hardware={"gpu": "h100-sxm-80gb", "gpus": 1}, layout={}),
}


@pytest.fixture
def sizer() -> Sizer:
    return Sizer(ModelResolver(catalogue(), Settings()), catalogue())


@pytest.mark.parametrize("request_body", [train(), infer()])
def test_a_search_that_nobody_waits_for_any_more_ends(sizer: Sizer, request_body: dict[str, Any]):
    with pytest.raises(PlanningStopped):
        sizer.answer(request_body, SPENT)
    # What came to no end is not remembered.
    assert sizer.remembered(request_body) is None
    assert sizer.answer(request_body, PLENTY) is sizer.remembered(request_body)


@pytest.mark.parametrize("kind", ["train", "infer"])
def test_advice_is_sought_only_in_the_time_that_leaves_some_for_the_answer(sizer: Sizer, kind: str):
    whole = Sizer(ModelResolver(catalogue(), Settings()), catalogue()).answer(TOO_LARGE[kind], PLENTY)
    assert whole.has_all_advice
    assert whole.answer.advice
    late = sizer.answer(TOO_LARGE[kind], LATE)
    assert not late.has_all_advice
    assert (late.answer.verdict, late.answer.advice) == ("no", ())


def test_an_answer_without_all_of_its_advice_is_not_remembered(sizer: Sizer):
    sizer.answer(TOO_LARGE["train"], LATE)
    assert sizer.remembered(TOO_LARGE["train"]) is None


def test_a_plan_that_fits_lacks_no_advice_however_late_it_is(sizer: Sizer):
    assert sizer.answer(train(), LATE).has_all_advice
