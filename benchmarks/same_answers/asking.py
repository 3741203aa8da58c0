"""All questions asked of one service, a few at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.same_answers.questions import Question
from benchmarks.same_answers.surroundings import FOLDER

AT_ONCE = 3
SLOWEST_SECONDS = 600.0
# What an answer may name that a later question is about.
NAMED = ("plan_id", "job_id")
UNASKED = 0
# What a body names by a word of its own, because it lies elsewhere in every tree.
PLACES = {"models": str(FOLDER / "models")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back, and the ids that it was asked with; `status` is 0 where an earlier answer lacks them."""

    status: int
    headers: Mapping[str, str]
    body: str
    ids: Mapping[str, str]


def ask_all(url: str, questions: Sequence[Question]) -> dict[int, Answer]:
    """Return every question's answer by its number: first those that stand alone, last those that store something."""
    answers: dict[int, Answer] = {}
    free = [question for question in questions if not question.in_order]
    waves = (
        [question for question in free if question.after is None],
        [question for question in free if question.after is not None],
        *([question] for question in questions if question.in_order),
    )
    with a_client(url) as client, ThreadPoolExecutor(AT_ONCE) as threads:
        for wave in waves:
            answers.update(threads.map(lambda question: (question.number, ask(client, question, answers)), wave))
    return answers


def a_client(url: str) -> httpx.Client:
    """Return a client of a service, which waits long for an answer."""
    return httpx.Client(base_url=url, timeout=SLOWEST_SECONDS, trust_env=False)


def ask(client: httpx.Client, question: Question, earlier: Mapping[int, Answer]) -> Answer:
    """Return the answer to a question, which may be about one that was answered earlier."""
    ids = {} if question.after is None else _ids(earlier[question.after].body)
    if question.after is not None and not ids:
        return Answer(status=UNASKED, headers={}, body=f"Question {question.after} was answered without an id.", ids={})
    content = question.content
    headers = {"accept-encoding": "identity", **question.headers}
    if content is not None:
        headers = {"content-type": "application/json", **headers}
    response = client.request(
        question.method,
        _filled(question.path, ids),
        content=None if content is None else _filled(content, {**ids, **PLACES}).encode(),
        headers=headers,
    )
    body = response.content.decode(errors="backslashreplace")
    return Answer(status=response.status_code, headers=dict(response.headers), body=body, ids=ids)


def _ids(body: str) -> dict[str, str]:
    """Return the ids that an answer names, at its top or else one level below."""
    try:
        answer: Any = json.loads(body)
    except ValueError:
        return {}
    parts = [answer, *answer.values()] if isinstance(answer, dict) else []
    named = ((name, part.get(name)) for part in reversed(parts) if isinstance(part, dict) for name in NAMED)
    return {name: value for name, value in named if isinstance(value, str)}


def _filled(text: str, ids: Mapping[str, str]) -> str:
    for name, value in ids.items():
        text = text.replace(f"{{{name}}}", value)
    return text
