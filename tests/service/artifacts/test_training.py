"""All launch files of a plan: for every stack, the same each time, and none that lies."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from pydantic_core import to_json

from plimsoll.planners.stacks.profile import stack_names
from plimsoll.service.artifacts.training import training_artifacts
from plimsoll.service.stacks.stack import stacks
from tests.service.stacks.launches import QWEN_3_30B_A3B, launch

TARGETS = {target.name: target for stack in stacks().values() for target in stack.targets}


def test_a_stack_without_a_folder_is_started_by_the_common_launchers():
    given = launch("deepspeed", data_parallel=8)
    plan = dataclasses.replace(given.plan, layout=dataclasses.replace(given.layout, framework="made-up"))
    unknown = dataclasses.replace(given, plan=plan)
    assert "made-up" not in stacks()
    assert set(training_artifacts(unknown).files) == {"torchrun", "dlrover"}


def test_folders_are_named_as_the_planners_name_stacks():
    assert set(stacks()) <= set(stack_names())


@pytest.mark.parametrize("framework", stack_names())
def test_every_stack_can_be_started(framework: str):
    found = training_artifacts(launch(framework, data_parallel=8))
    assert {"torchrun", "dlrover"} <= found.files.keys()
    assert not found.files.keys() & found.missing.keys()


@pytest.mark.parametrize("framework", stack_names())
def test_the_same_plan_has_the_same_files(framework: str):
    given = launch(framework, data_parallel=8)
    assert to_json(training_artifacts(given)) == to_json(training_artifacts(given))


def test_names_are_told_apart_and_fit_an_address():
    for stack in stacks().values():
        assert len({target.name for target in stack.targets}) == len(stack.targets)
    assert all(name.replace("-", "").isalnum() and name == name.lower() for name in TARGETS)


def test_a_file_is_saved_alike_for_every_stack():
    saved = {(target.name, target.saved_as) for stack in stacks().values() for target in stack.targets}
    assert len(saved) == len(TARGETS)


def test_the_document_names_every_file():
    page = (Path(__file__).parents[3] / "docs" / "artifacts.md").read_text(encoding="utf-8")
    assert [name for name in TARGETS if f"`{name}`" not in page] == []


def test_compressed_gradients_are_left_to_the_script():
    made = training_artifacts(launch("ddp", data_parallel=8, asked={"gradient_compression": "powersgd"}))
    assert set(made.files) == {"torchrun", "horovod", "horovod-hosts", "dlrover"}
    assert any("powersgd" in said for said in made.missing["torchtitan"])


def test_megatron_is_told_which_modules_it_recomputes():
    chosen = {"recompute": "selective", "recompute_modules": ("layernorm", "mlp")}
    made = training_artifacts(launch("megatron", **chosen))
    assert "--recompute-modules layernorm mlp" in made.files["megatron"]
    of_qwen = training_artifacts(launch("megatron", config=QWEN_3_30B_A3B, **chosen))
    assert any("layernorm, mlp" in said for said in of_qwen.missing["pai-megatron"])
