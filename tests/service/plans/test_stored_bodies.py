from __future__ import annotations

import json
from dataclasses import fields

import pytest

from plimsoll.service.plans.answers import InferPlanBody, TrainPlanBody
from plimsoll.service.plans.stored_bodies import in_todays_shape, plan_body
from plimsoll.service.text.answers import plan_text
from tests.service.plans.earlier_versions import EARLIER

NAMES = [name for name, _ in EARLIER]
PLANS = [plan for _, plan in EARLIER]


@pytest.mark.parametrize("plan", PLANS, ids=NAMES)
def test_an_earlier_answer_has_every_field_of_todays_and_keeps_its_own(plan):
    body, stored = plan_body(plan), json.loads(plan.answer)
    today = TrainPlanBody if plan.kind == "train" else InferPlanBody
    assert {field.name for field in fields(today)} <= body.keys()
    assert {name: body[name] for name in ("plan_id", "verdict", "summary", "assumptions")} == {
        name: stored[name] for name in ("plan_id", "verdict", "summary", "assumptions")
    }
    assert body["plan"]["memory"]["peak_bytes"] == stored["plan"]["memory"]["peak_bytes"]


@pytest.mark.parametrize("plan", PLANS, ids=NAMES)
def test_its_text_tells_of_nothing_that_it_does_not_know(plan):
    text = plan_text(plan_body(plan))
    assert plan.plan_id in text
    assert not {"None", "null", "nan"} & set(text.split())


def test_what_has_todays_shape_stays_as_it_is_to_the_last_byte():
    plan = in_todays_shape(PLANS[0])
    assert in_todays_shape(plan) is plan


def test_what_came_later_is_empty_or_one_or_null():
    (oldest,) = [plan for name, plan in EARLIER if name == "0d4c091-infer-slo"]
    assert "fleet" not in json.loads(oldest.answer)
    body = plan_body(oldest)
    assert body["fleet"] == []
    assert body["plan"]["learned"] is None
    assert body["plan"]["kv"]["longest_context_tokens"] is None
    (oldest,) = [plan for name, plan in EARLIER if name == "0d4c091-train"]
    assert plan_body(oldest)["plan"]["memory"]["nvme_bytes"] == 0
