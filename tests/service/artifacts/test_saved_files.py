"""A launch file is saved with the ending of what it holds, and under the name by which others look for it."""

from __future__ import annotations

import ast
import subprocess
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from plimsoll.planners.stacks.profile import stack_names
from plimsoll.service.artifacts.saved_files import file_name, file_text
from plimsoll.service.artifacts.serving import serving_artifacts
from plimsoll.service.artifacts.training import training_artifacts
from tests.service.engines.serving_plans import CHECKPOINT, hardware, placement, serving_plan
from tests.service.launch.test_kubernetes import SERVING, training_manifests_of
from tests.service.stacks.launches import launch
from tests.service.stacks.nanotron.test_launch import LLAMA_2_7B

TWO_NODES = {"tensor_parallel": 8, "pipeline_parallel": 2}


def all_files() -> Iterator[tuple[str, Any]]:
    """Yield every launch file that a plain plan of each stack and engine has, by name."""
    for framework in stack_names():
        yield from training_artifacts(launch(framework, data_parallel=8)).files.items()
    yield from training_manifests_of(8).items()
    for engine, degrees in [*SERVING.items(), ("vllm", TWO_NODES)]:
        plan = serving_plan(engine=engine, layout=degrees)
        yield from serving_artifacts(CHECKPOINT, plan, hardware(), placement(), fits=True).files.items()


FILES = {file_name(name, content): content for name, content in all_files()}


def ending(name: str) -> str:
    return name.rpartition(".")[1] + name.rpartition(".")[2] if "." in name else ""


@pytest.mark.parametrize("name", FILES)
def test_a_file_holds_what_its_ending_says(name: str):
    content = FILES[name]
    kinds = {
        ".yaml": lambda: isinstance(yaml.safe_load(content), dict),
        ".toml": lambda: tomllib.loads(content),
        ".json": lambda: not isinstance(content, str),
        ".py": lambda: ast.parse(content),
        ".txt": lambda: all(line.startswith("--") for line in content.splitlines()),
        ".sh": lambda: not isinstance(yaml.safe_load(content), dict) and not is_refused_by_a_shell(content),
        "": lambda: content.startswith("#!"),
    }
    assert kinds[ending(name)]()


def is_refused_by_a_shell(text: str) -> bool:
    return subprocess.run(["bash", "-n"], input=text.encode(), check=False).returncode != 0  # noqa: S607


@pytest.mark.parametrize(
    ("starter", "framework", "zero_stage", "read"),
    [
        ("torchrun", "fsdp2", 3, "torchtitan"),
        ("horovod", "ddp", 0, "horovod-hosts"),
        ("accelerate", "deepspeed", 3, "deepspeed"),
    ],
)
def test_a_command_finds_the_file_that_it_names(starter: str, framework: str, zero_stage: int, read: str):
    files = training_artifacts(launch(framework, data_parallel=8, zero_stage=zero_stage)).files
    assert file_name(read, files[read]) in files[starter]


def test_nanotron_s_command_finds_its_file():
    files = training_artifacts(launch("nanotron", config=LLAMA_2_7B, data_parallel=8)).files
    assert file_name("nanotron", files["nanotron"]) in files["torchrun"]


def test_an_adapter_is_saved_as_peft_looks_for_it():
    assert file_name("peft", {}) == "adapter_config.json"


def test_a_name_with_an_ending_is_the_file_s():
    assert file_name("trtllm-options.yaml", "a: 1") == "trtllm-options.yaml"


def test_text_ends_its_last_line_once():
    assert file_text("a") == file_text("a\n") == "a\n"


def test_what_is_no_text_is_written_as_json():
    assert file_text({"zero": 3}) == '{\n  "zero": 3\n}\n'
