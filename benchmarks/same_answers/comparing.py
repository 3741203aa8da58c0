"""Where two answers differ, after what must differ is taken out of both."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from benchmarks.same_answers.asking import Answer

# Everything that is not compared, in JSON and in text alike: (what it is, how it is written, what stands in its place).
REMOVED = (
    ("the planner's version, a digest of its files", re.compile(r"\b\d+\.\d+\.\d+\+[0-9a-f]{8}\b"), "<version>"),
    ("seconds that a search took", re.compile(r'("search":\{[^{}]*"seconds":)[^,}]+'), r"\1<seconds>"),
    ("the same in a table", re.compile(r"(by a rule\) in )[\d.,]+ \w+"), r"\1<seconds>"),
    ("times of day", re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00)?"), "<time>"),
    ("ids of jobs", re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<job>"),
    ("cursors, which hold a time and an id", re.compile(r'(cursor(?:":"|=))[\w-]{40,}'), r"\1<cursor>"),
)
# Plans' ids, which are digests of the planner's version too, and a workload's name, which ends in the first digits.
PLAN_ID = re.compile(r"\b[0-9a-f]{40}\b")
SHORT_ID_CHARACTERS = 8
REMOVED_HEADERS = frozenset({"date", "x-request-id", "content-length", "etag"})

ABSENT = "(absent)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A JSON pointer, or in parentheses what else differs, with both values."""

    pointer: str
    before: str
    after: str


def differences(before: Answer, after: Answer) -> list[Difference]:
    """Return where two answers differ; none where only what must differ does."""
    found = [*_unequal("(status)", before.status, after.status)]
    for name in sorted((before.headers.keys() | after.headers.keys()) - REMOVED_HEADERS):
        values = (comparable(each.headers.get(name, ABSENT), each) for each in (before, after))
        found += _unequal(f"(header {name})", *values)
    return [*found, *_in_bodies(comparable(before.body, before), comparable(after.body, after))]


def comparable(text: str, answer: Answer) -> str:
    """Return a text of an answer without what must differ."""
    for plan_id in {*PLAN_ID.findall(answer.body), *PLAN_ID.findall(" ".join(answer.ids.values()))}:
        text = text.replace(plan_id, "<plan>").replace(plan_id[:SHORT_ID_CHARACTERS], "<plan>")
    for _, pattern, replacement in REMOVED:
        text = pattern.sub(replacement, text)
    return text


def _in_bodies(before: str, after: str) -> Iterator[Difference]:
    if before == after:
        return
    try:
        values: tuple[Any, Any] = json.loads(_as_json(before)), json.loads(_as_json(after))
    except ValueError:
        yield from _in_lines(before, after)
        return
    found = [*_in_values("", *values)]
    # The same values, written otherwise.
    yield from found or _in_lines(before, after)


def _as_json(text: str) -> str:
    return text.replace("<seconds>", "0")


def _in_lines(before: str, after: str) -> Iterator[Difference]:
    lines = zip_longest(before.splitlines(), after.splitlines(), fillvalue=ABSENT)
    for number, (one, other) in enumerate(lines, 1):
        yield from _unequal(f"(line {number})", one, other)


def _in_values(pointer: str, before: Any, after: Any) -> Iterator[Difference]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys((*before, *after)):
            place = name.replace("~", "~0").replace("/", "~1")
            yield from _in_values(f"{pointer}/{place}", before.get(name, ABSENT), after.get(name, ABSENT))
    elif isinstance(before, list) and isinstance(after, list):
        for place, (one, other) in enumerate(zip_longest(before, after, fillvalue=ABSENT)):
            yield from _in_values(f"{pointer}/{place}", one, other)
    elif isinstance(before, str) and isinstance(after, str) and "\n" in before + after:
        for each in _in_lines(before, after):
            yield Difference(pointer=f"{pointer} {each.pointer}", before=each.before, after=each.after)
    else:
        yield from _unequal(pointer, before, after)


def _unequal(pointer: str, before: Any, after: Any) -> Iterator[Difference]:
    one, other = (value if isinstance(value, str) else json.dumps(value) for value in (before, after))
    if type(before) is not type(after) or one != other:
        yield Difference(pointer=pointer, before=one, after=other)
