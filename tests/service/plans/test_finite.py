"""What is no finite number of an answer is left out and named, unless the plan is nothing without it."""

import functools
import json
import math
from dataclasses import replace

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.stopping import never
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.resolving import ModelResolver
from plimsoll.service.plans.finite import finite_body
from plimsoll.service.plans.learned_starts import NOTHING_LEARNED
from plimsoll.service.plans.making import infer_answer, made_plan, train_answer
from plimsoll.service.plans.questions import QuestionResolver
from plimsoll.service.requests.serving import InferRequest
from plimsoll.service.requests.training import TrainRequest
from plimsoll.service.text.answers import plan_text
from tests.api.questions import infer, train

ANSWERS = {
    "train": (TrainRequest, train_answer, train()),
    "infer": (InferRequest, infer_answer, infer(serving={"concurrency": 4, "weights": ["bf16", "fp8"]})),
}


@functools.cache
def made(kind):
    """Return a question, and its body and hardware as the planner answers it."""
    request_kind, answer, question = ANSWERS[kind]
    request = request_kind.model_validate(question)
    known = catalogue()
    resolved = QuestionResolver(known, ModelResolver(known, Settings())).resolve(kind, request, {}, NOTHING_LEARNED)
    return resolved, *answer(request, resolved, never)


def stored(kind, spoil):
    """Return the answer that is stored where the planner's own is spoiled."""
    resolved, body, hardware = made(kind)
    plan, _ = made_plan(resolved, lambda _resolved, _stop: (spoil(body), hardware), never)
    return json.loads(plan.answer)


def in_part(body, path, value):
    """Return a body with another value in one place."""
    name, _, rest = path.partition(".")
    if isinstance(body, tuple):
        return tuple(in_part(each, path, value) if index == 0 else each for index, each in enumerate(body))
    inner = getattr(body, name)
    return replace(body, **{name: in_part(inner, rest, value) if rest else value})


@pytest.mark.parametrize(
    ("kind", "path", "part"),
    [
        ("train", "plan.run.cost_usd", "plan.run.cost_usd"),
        ("infer", "plan.cost_usd_per_million_output_tokens", "plan.cost_usd_per_million_output_tokens"),
        ("infer", "plan.performance.ttft_seconds", "plan.performance"),
    ],
)
@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_what_may_be_null_is(kind, path, part, number):
    answer = stored(kind, lambda body: in_part(body, path, number))
    told = answer
    for name in part.split("."):
        told = told[name]
    assert told is None
    assert [each["part"] for each in answer["omitted"]] == [part]
    assert f"Left out\n  - {part}: " in plan_text(answer)


@pytest.mark.parametrize(("kind", "number"), [("train", "step_seconds"), ("infer", "max_concurrency")])
def test_an_entry_of_a_list_goes_alone(kind, number):
    whole = stored(kind, lambda body: body)["alternatives"]
    answer = stored(kind, lambda body: in_part(body, f"alternatives.{number}", math.inf))
    assert whole
    assert answer["alternatives"] == whole[1:]
    assert [each["part"] for each in answer["omitted"]] == ["alternatives"]


def test_a_launch_file_goes_alone():
    spoiled = {"good": "text", "bad": {"rate": math.nan}}
    answer = stored("infer", lambda body: replace(body, artifacts=spoiled))
    assert answer["artifacts"] == {"good": "text"}
    assert [each["part"] for each in answer["omitted"]] == ["artifacts.bad"]


def test_what_the_plan_is_nothing_without_refuses_it():
    with pytest.raises(InvalidQuestion, match="so far apart"):
        stored("train", lambda body: in_part(body, "plan.step.seconds", math.inf))


@pytest.mark.parametrize("kind", ["train", "infer"])
def test_a_body_of_finite_numbers_stays_as_it_is(kind):
    body = made(kind)[1]
    assert finite_body(body) == body
