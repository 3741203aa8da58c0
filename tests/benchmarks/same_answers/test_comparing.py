from __future__ import annotations

from typing import Any

import pytest

from benchmarks.same_answers.asking import Answer
from benchmarks.same_answers.comparing import ABSENT, Difference, differences

OLD, NEW = "a" * 40, "b" * 40


def an_answer(body: str, status: int = 200, **parts: Any) -> Answer:
    return Answer(status=status, body=body, headers=parts.get("headers", {}), ids=parts.get("ids", {}))


def places(before: str, after: str) -> list[tuple[str, str, str]]:
    return [(each.pointer, each.before, each.after) for each in differences(an_answer(before), an_answer(after))]


def test_each_place_of_json_that_differs_is_told_with_both_values():
    before = '{"plan":{"a/b":[1,2],"c":1},"d":"x"}'
    after = '{"plan":{"a/b":[1,3,4],"c":1.0},"d":"x"}'
    assert places(before, after) == [
        ("/plan/a~1b/1", "2", "3"),
        ("/plan/a~1b/2", ABSENT, "4"),
        ("/plan/c", "1", "1.0"),
    ]


def test_a_text_within_json_is_told_by_its_lines():
    assert places('{"file":"a\\nb"}', '{"file":"a\\nc"}') == [("/file (line 2)", "b", "c")]


@pytest.mark.parametrize(
    ("before", "after"), [('{"a":1,"b":2}', '{"b":2,"a":1}'), ('{"a": 1}', '{"a":1}'), ("one\ntwo", "one\nthree")]
)
def test_the_order_of_members_spaces_and_words_of_text_count(before: str, after: str):
    assert places(before, after)


@pytest.mark.parametrize(
    "body",
    [
        '{{"plan_id":"{id}","planner_version":"0.1.0+{version}","fits":true}}',
        '{{"artifacts":{{"job":"name: llama-3-1-8b-{short}\\nplan: {id}"}}}}',
        '{{"search":{{"layouts_fitting":3,"seconds":{number}}}}}',
        "Searched 2 layouts (1 fit; 0 more were excluded by a rule) in {number} ms.",
        '{{"created_at":"2026-11-2{number}T01:07:42.316181Z"}}',
        '{{"job":{{"job_id":"{version}-42fb-49fc-9ff3-e2102b3159b8"}}}}',
    ],
)
def test_what_must_differ_is_not_compared(body: str):
    one = body.format(id=OLD, short=OLD[:8], version="0123abcd", number=1)
    other = body.format(id=NEW, short=NEW[:8], version="4567cdef", number=2)
    assert one != other
    assert places(one, other) == []


def test_the_id_that_a_launch_file_was_asked_by_is_known_in_it():
    before, after = (an_answer(f"name: llama-{plan[:8]}", ids={"plan_id": plan}) for plan in (OLD, NEW))
    assert differences(before, after) == []


def test_status_and_headers_are_compared_but_those_of_one_answer_alone():
    before = an_answer("{}", 200, headers={"date": "today", "vary": "Accept"})
    after = an_answer("{}", 404, headers={"date": "tomorrow"})
    assert differences(before, after) == [
        Difference(pointer="(status)", before="200", after="404"),
        Difference(pointer="(header vary)", before="Accept", after=ABSENT),
    ]
