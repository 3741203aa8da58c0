from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.same_answers.questions import QUESTIONS, Question, chosen, read_questions

STORED = read_questions()
MOST_BYTES = 1_500_000
LEAST_QUESTIONS = 1_000
PLACEHOLDERS = ("{plan_id}", "{job_id}")


def test_every_question_has_a_number_of_its_own():
    repeated = [number for number, times in Counter(each.number for each in STORED).items() if times > 1]
    assert repeated == []


def test_no_question_is_asked_twice_but_those_that_show_what_was_stored_between():
    asked = Counter(
        (each.method, each.path, each.content, each.after, *each.headers.items())
        for each in STORED
        if not each.in_order
    )
    assert max(asked.values()) == 1


def test_there_are_many_and_the_file_stays_small():
    assert len(STORED) >= LEAST_QUESTIONS
    assert QUESTIONS.stat().st_size <= MOST_BYTES


@pytest.mark.parametrize("question", [each for each in STORED if each.after], ids=lambda each: str(each.number))
def test_what_a_question_comes_after_is_asked_before_it(question: Question):
    (earlier,) = (each for each in STORED if each.number == question.after)
    assert earlier.after is None or earlier.in_order
    assert question.in_order or not earlier.in_order
    assert earlier.number < question.number


def test_an_id_is_left_open_only_where_an_earlier_answer_names_it():
    of_none = [each.number for each in STORED if each.after is None]
    left_open = [each.number for each in STORED if any(name in f"{each.path} {each.content}" for name in PLACEHOLDERS)]
    assert set(left_open).isdisjoint(of_none)


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("POST", "/plan/train?strict=true", "POST /plan/train"),
        ("GET", "/plans/{plan_id}/artifacts/vllm?queue=a", "GET /plans/{plan_id}/artifacts/{name}"),
        ("GET", "/models/meta-llama/Llama-3.1-8B", "GET /models/{id}"),
        ("POST", "/models/describe", "POST /models/describe"),
        ("GET", "/hardware/l4-24gb/calibration", "GET /hardware/{id}/calibration"),
        ("DELETE", "/measurements/3", "DELETE /measurements/{number}"),
    ],
)
def test_answers_are_counted_by_route(method: str, path: str, route: str):
    assert Question(number=1, kind="any", method=method, path=path).route == route


def test_a_chosen_question_brings_those_it_comes_after():
    questions = [
        Question(number=number, kind="any", method="GET", path="/", after=after)
        for number, after in ((1, None), (2, 1), (3, None), (4, 2))
    ]
    assert [each.number for each in chosen(questions, [4])] == [1, 2, 4]
