"""The stored questions: what is sent, and which of them need the answer to another one first."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

QUESTIONS = Path(__file__).parent / "questions.jsonl"

# What a path becomes where answers are counted by route.
_ROUTES = (
    (re.compile(r"\?.*"), ""),
    (re.compile(r"^/plans/[^/]+"), "/plans/{plan_id}"),
    (re.compile(r"/artifacts/.+"), "/artifacts/{name}"),
    (re.compile(r"^/models/(?!describe$).+"), "/models/{id}"),
    (re.compile(r"^/hardware/[^/]+"), "/hardware/{id}"),
    (re.compile(r"^/jobs/[^/]+"), "/jobs/{job_id}"),
    (re.compile(r"^/measurements/.+"), "/measurements/{number}"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request. `kind` says what it is there for; `text` is a body that is sent as it stands, JSON or not.

    In the path and body of a question with `after`, `{plan_id}` and `{job_id}` stand for what the answer to that
    question names so; in any body `{models}` is a folder of models on disk. Questions `in_order` are asked one at a
    time after all others, because they store something.
    """

    number: int
    kind: str
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    text: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    after: int | None = None
    in_order: bool = False

    @property
    def route(self) -> str:
        """Return the method and the path's template."""
        path = self.path
        for pattern, template in _ROUTES:
            path = pattern.sub(template, path)
        return f"{self.method} {path}"

    @property
    def content(self) -> str | None:
        """Return the body as it is sent."""
        return self.text if self.body is None else json.dumps(self.body, ensure_ascii=False)


def read_questions(file: Path = QUESTIONS) -> tuple[Question, ...]:
    """Return the questions of a file in its order."""
    with file.open(encoding="utf-8") as lines:
        return tuple(Question(**json.loads(line)) for line in lines)


def chosen(questions: Sequence[Question], numbers: Iterable[int]) -> tuple[Question, ...]:
    """Return the questions of those numbers, and those that they come after."""
    by_number = {question.number: question for question in questions}
    wanted: set[int] = set()
    for number in numbers:
        following: int | None = number
        while following is not None:
            wanted.add(following)
            following = by_number[following].after
    return tuple(question for question in questions if question.number in wanted)
