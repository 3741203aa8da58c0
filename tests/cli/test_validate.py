"""`plimsoll validate` and `--validate`: a plan's proof, by a child of this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from plimsoll.cli.main import app
from tests.cli.requests_on_disk import request_file


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


def test_a_request_on_disk_is_planned_and_counted(tmp_path: Path):
    answer = run("validate", "-f", request_file(tmp_path), "--level", "count", "--json")
    assert answer.exit_code == 0, answer.output
    job = json.loads(answer.stdout)
    assert job["state"] == "succeeded"
    assert job["result"]["level"] == "count"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["0123"], "--url"),
        ([], "Name a plan's id"),
        (["0123", "--level", "all"], "There are count, trace, device"),
    ],
)
def test_what_names_no_plan_to_prove_is_refused(arguments: list[str], told: str):
    answer = run("validate", *arguments)
    assert answer.exit_code == 2
    assert told in answer.stderr


def test_a_plan_that_no_worker_can_prove_is_named(tmp_path: Path):
    file = request_file(tmp_path, training={"optimizer": "lion"}, framework="megatron")
    answer = run("validate", "-f", file, "--level", "trace")
    assert answer.exit_code == 2
    assert "lion" in answer.stderr
