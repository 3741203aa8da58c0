"""docs/artifacts.md lists every launch file that any plan has, with what accepts it and a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plimsoll.service.stacks.stack import stacks
from tests.service.artifacts.test_saved_files import all_files

PAGE = (Path(__file__).parents[3] / "docs" / "artifacts.md").read_text(encoding="utf-8")
TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "stacks" / "golden"
ROWS = [line for line in PAGE.splitlines() if line.startswith("| `")]


def listed() -> set[str]:
    return {name for row in ROWS for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_every_file_that_a_plan_can_have_is_listed():
    made = {name for name, _ in all_files()} | {target.name for stack in stacks().values() for target in stack.targets}
    assert made - listed() == set()


@pytest.mark.parametrize("row", ROWS, ids=[row.split("|")[1].strip() for row in ROWS])
def test_each_is_tested_where_the_page_says(row: str):
    (name,) = re.findall(r"`([\w/]+/test_\w+\.py)`", row.split("|")[-2])
    text = (TESTS / name).read_text(encoding="utf-8")
    assert "\ndef test_" in text
    for golden in re.findall(r"`golden/([^`]+)`", row):
        assert (GOLDEN / golden).is_file()
        assert golden in text


def test_every_golden_file_is_named():
    assert {path.name for path in GOLDEN.iterdir()} == set(re.findall(r"`golden/([^`]+)`", PAGE))
