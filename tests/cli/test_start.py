"""What a command loads before it can answer: the fewer, the sooner."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from plimsoll.cli.main import app
from plimsoll.planners import PLANNER_VERSION, families
from plimsoll.planners.version import planner_version
from plimsoll.service.worker.processes.child import PROJECT_ROOT

PROGRAM = """
import json, sys
from plimsoll.cli.main import app
try:
    app(json.loads(sys.argv[1]))
except SystemExit as end:
    assert not end.code, end.code
print("\\n" + json.dumps(sorted({name.partition(".")[0] for name in sys.modules} | set(sys.modules))))
"""
FAMILIES = {
    f"plimsoll.planners.families.{found.name}"
    for found in pkgutil.iter_modules(families.__path__)
    if found.name not in ("family", "reading", "registry")
}
HEAVY = {"torch", "transformers", "sqlalchemy", "psycopg", "fastapi", "starlette", "uvicorn", "procrastinate"}


def loaded_by(*arguments: str) -> set[str]:
    command = [sys.executable, "-c", PROGRAM, json.dumps(arguments)]
    ended = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(ended.stdout.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "train", "--help"]])
def test_help_needs_none_of_the_planners_libraries(arguments):
    loaded = loaded_by(*arguments)
    assert loaded & {*HEAVY, "numpy", "httpx", "plimsoll.planners", "rich"} == set()
    # Tables of numbers and words that help shows.
    assert {name for name in loaded if name.startswith("plimsoll.service.")} <= {
        "plimsoll.service.requests",
        "plimsoll.service.requests.defaults",
        "plimsoll.service.requests.shown",
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ["models", "--search", "llama-3.1"],
        ["models", "llama-3.1-8b"],
        ["plan", "infer", "gpt2", "--gpu", "h100", "--gpus", "1"],
    ],
)
def test_answers_of_this_process_need_no_server_no_database_and_no_network(arguments):
    assert loaded_by(*arguments) & {*HEAVY, "httpx"} == set()


def test_a_list_of_hardware_needs_no_model_and_no_numbers():
    assert loaded_by("hardware", "h100") & {*HEAVY, "httpx", "numpy", *FAMILIES} == set()


def test_the_version_is_told_with_the_planners_own():
    told = CliRunner().invoke(app, ["--version"])
    assert told.exit_code == 0
    assert told.output == f"plimsoll {PLANNER_VERSION}, planner {planner_version()}\n"
