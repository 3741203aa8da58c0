from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from plimsoll.cli.main import app
from tests.api.questions import TINY_CONFIG
from tests.cli.requests_on_disk import request_file


def emit(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["emit", *arguments])


def test_the_files_of_a_request_are_listed_and_written(tmp_path: Path):
    file = request_file(tmp_path)
    listed = json.loads(emit("-f", file, "--list", "--json").stdout)
    assert emit("-f", file, "--to", str(tmp_path / "launch")).exit_code == 0
    assert {path.name for path in (tmp_path / "launch").iterdir()} == set(listed.values())


def test_a_request_that_serves_is_told_from_one_that_trains(tmp_path: Path):
    file = tmp_path / "serve.json"
    file.write_text(json.dumps({"model": "llama-3.1-8b", "hardware": {"gpu": "h100-sxm-80gb", "gpus": 1}}))
    answer = emit("-f", str(file), "--list")
    assert answer.exit_code == 0, answer.output
    assert "vllm" in answer.stdout


@pytest.mark.parametrize("arguments", [[], ["0123"], ["-f", "nowhere.json"]])
def test_without_a_plan_there_is_nothing_to_write(arguments: list[str]):
    assert emit(*arguments).exit_code == 2


def test_a_model_that_no_catalogue_lists_has_no_command_for_an_engine(tmp_path: Path):
    file = tmp_path / "serve.json"
    hardware = {"gpu": "h100-sxm-80gb", "gpus": 1}
    file.write_text(json.dumps({"model": {"config": TINY_CONFIG}, "hardware": hardware}))
    assert "no launch files" in emit("-f", str(file), "--to", str(tmp_path / "launch")).stderr
