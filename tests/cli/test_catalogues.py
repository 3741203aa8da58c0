"""`plimsoll models`, `hardware` and `accuracy`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from plimsoll.cli.main import app
from tests.cli.requests_on_disk import model_file


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


def test_models_are_found_by_a_part_of_any_name():
    # The published count of Llama 3.1 8B is 8,030,261,248.
    answer = run("models", "--search", "LLAMA-3.1-8b")
    assert answer.exit_code == 0
    assert "meta-llama/Llama-3.1-8B  " in answer.stdout
    assert "8.030" in answer.stdout


def test_a_model_is_described_from_a_file(tmp_path: Path):
    answer = run("models", model_file(tmp_path), "--json")
    assert json.loads(answer.stdout)["layers"] == 4


def test_a_gpu_is_shown_by_an_alias():
    assert run("hardware", "h100").stdout.startswith("GPU h100-sxm-80gb")


def test_clusters_stand_beside_the_gpus():
    assert "dgx-h100" in run("hardware", "--search", "dgx-h100").stdout


@pytest.mark.parametrize("command", ["models", "hardware"])
def test_where_nothing_matches_the_exit_code_is_1(command: str):
    assert run(command, "--search", "no such thing").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["models", "llama-3.1-9b"], "Nearest"),
        (["models", "nowhere.json"], "nowhere.json"),
        (["hardware", "h101"], "Nearest"),
        (["hardware", "--url", "http://127.0.0.1:1"], "No service answers"),
        (["accuracy"], "--url"),
        (["accuracy", "--csv"], "--url"),
        (["accuracy", "--csv", "--json"], "Choose"),
    ],
)
def test_what_has_no_answer_exits_with_2(arguments: list[str], told: str):
    answer = run(*arguments)
    assert answer.exit_code == 2
    assert told in answer.stderr


def test_a_service_answers_the_same(service_url: str):
    for arguments in (["models", "llama-3.1-8b"], ["hardware", "h100"], ["hardware", "--search", "h100"]):
        assert run(*arguments, "--url", service_url).stdout == run(*arguments).stdout


def test_the_record_of_a_service_that_measured_nothing_is_empty(service_url: str):
    assert run("accuracy", "--url", service_url).stdout.startswith("0 measurements on record")


def test_the_record_is_printed_as_csv(service_url: str):
    answer = run("accuracy", "--csv", "--url", service_url)
    assert (answer.exit_code, answer.stdout.split(",")[:2]) == (0, ["measurement_id", "created_at"])
