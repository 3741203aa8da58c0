from __future__ import annotations

import re

import pytest

from plimsoll.planners import PLANNER_VERSION
from plimsoll.planners.version import _files_digest, planner_version


def test_a_version_is_the_release_and_a_digest():
    assert re.fullmatch(re.escape(PLANNER_VERSION) + r"\+[0-9a-f]{8}", planner_version())


@pytest.mark.parametrize("name", ["formula.py", "memory/stack.toml", "memory/runs.csv", "catalogue/loader.py"])
def test_any_changed_code_or_data_is_another_version(tmp_path, name):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("half_tokens = 500\n")
    before = _files_digest(tmp_path)
    file.write_text("half_tokens = 501\n")
    assert _files_digest(tmp_path) != before


@pytest.mark.parametrize("name", ["catalogue/gpus/h100.toml", "formula.pyc", "notes.md"])
def test_what_decides_no_formula_changes_no_version(tmp_path, name):
    before = _files_digest(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("anything")
    assert _files_digest(tmp_path) == before
