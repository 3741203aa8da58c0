"""All launch files of a plan: for every stack, the same each time, and none that lies."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic_core import to_json

from planners.memory.profile import profile_names
from service.artifacts.training import TARGETS, training_artifacts
from tests.service.artifacts.training.launches import launch


@pytest.mark.parametrize("framework", profile_names())
def test_every_stack_can_be_started(framework: str):
    found = training_artifacts(launch(framework, data_parallel=8))
    assert {"torchrun", "dlrover"} <= found.files.keys()
    assert not found.files.keys() & found.missing.keys()


@pytest.mark.parametrize("framework", profile_names())
def test_the_same_plan_has_the_same_files(framework: str):
    given = launch(framework, data_parallel=8)
    assert to_json(training_artifacts(given)) == to_json(training_artifacts(given))


def test_names_are_told_apart_and_fit_an_address():
    names = [target.name for target in TARGETS]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalnum() and name == name.lower() for name in names)


def test_the_document_names_every_file():
    page = (Path(__file__).parents[4] / "docs" / "artifacts.md").read_text(encoding="utf-8")
    assert [target.name for target in TARGETS if f"`{target.name}`" not in page] == []
