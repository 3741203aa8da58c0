from __future__ import annotations

import json

import httpx

from benchmarks.same_answers.asking import UNASKED, Answer, ask
from benchmarks.same_answers.questions import Question

PLANNED = Answer(status=200, headers={}, body='{"plan_id":"p1","plan":{"job_id":"no"}}', ids={})
QUEUED = Answer(status=202, headers={}, body='{"estimate":{},"job":{"job_id":"j1","plan_id":null}}', ids={})
REFUSED = Answer(status=422, headers={}, body='{"detail":"No."}', ids={})


def echo(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json=[request.url.path, request.content.decode()])


def asked(earlier: Answer, path: str, **parts: object) -> Answer:
    question = Question(number=2, kind="any", method="POST", path=path, after=1, **parts)  # type: ignore[arg-type]
    with httpx.Client(transport=httpx.MockTransport(echo), base_url="http://localhost") as client:
        return ask(client, question, {1: earlier})


def test_the_id_of_an_earlier_plan_stands_in_path_and_body():
    answer = asked(PLANNED, "/plans/{plan_id}", body={"plan": "{plan_id}"})
    assert json.loads(answer.body) == ["/plans/p1", '{"plan": "p1"}']
    assert answer.ids["plan_id"] == "p1"


def test_the_id_of_an_earlier_job_is_found_below():
    assert json.loads(asked(QUEUED, "/jobs/{job_id}").body) == ["/jobs/j1", ""]


def test_a_question_about_what_was_refused_is_not_asked():
    answer = asked(REFUSED, "/plans/{plan_id}")
    assert answer.status == UNASKED
