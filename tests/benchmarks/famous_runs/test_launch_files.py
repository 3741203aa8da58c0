"""Launch files of published runs as they ran: their stacks' own programs accept what they say.

Runs that are refused have none; nanotron, llm-foundry, torchtune and Megatron-DeepSpeed cannot be installed beside
today's torch.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.famous_runs.asking import own_launch_file
from benchmarks.famous_runs.record import famous_runs
from benchmarks.random_plans.planning import read_request
from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.planners.training.planning import plan_without_advice
from plimsoll.service.artifacts.training import training_artifacts
from plimsoll.service.launch.training import TrainingLaunch
from plimsoll.service.stacks.commands import training_launch
from plimsoll.service.workloads.commands.launches import Launch
from plimsoll.service.workloads.commands.shell import programs
from plimsoll.service.workloads.objects.pods import Container
from tests.service.stacks.accelerate.test_launch import launched as read_by_accelerate
from tests.service.stacks.deepspeed.test_launch import Ranks
from tests.service.stacks.megatron.test_launch import config as read_by_megatron_core

# megatron-core compiles small functions with torch.jit as it is imported, and misses Transformer Engine on a machine
# without a GPU.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

RUNS = {run.slug: run for run in famous_runs()}
TORCHTITAN = importlib.util.find_spec("torchtitan")
DEGREES = (
    "data_parallel",
    "tensor_parallel",
    "pipeline_parallel",
    "virtual_pipeline",
    "context_parallel",
    "expert_parallel",
)


@functools.cache
def launch_of(slug: str) -> TrainingLaunch | None:
    """Return the launch of a run as it would run today; None where it is refused.

    Files are for the newest version of a framework, whichever one a run had.
    """
    request = {name: value for name, value in RUNS[slug].request.items() if name != "framework_version"}
    try:
        asked = read_request(request)
        plan = plan_without_advice(asked.question).plan
    except (PlimsollError, ValueError):
        return None
    name = asked.model.name if asked.model.is_listed else None
    return TrainingLaunch(question=asked.question, plan=plan, model_config=asked.model.config, model_name=name)


def with_file(name: str) -> dict[str, TrainingLaunch]:
    """Return the launches that have such a file."""
    launches = {slug: launch_of(slug) for slug in RUNS}
    return {slug: one for slug, one in launches.items() if one is not None and name in training_artifacts(one).files}


@pytest.fixture
def torchtitan() -> Iterator[None]:
    """Let the package's modules be found without running the package's own, which imports Triton's kernels."""
    if TORCHTITAN is None:
        pytest.skip("torchtitan is installed by `make`, without what it depends on")
    package = ModuleType("torchtitan")
    package.__path__ = list(TORCHTITAN.submodule_search_locations or ())
    sys.modules["torchtitan"] = package
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchtitan"]:
        del sys.modules[name]


@pytest.mark.parametrize("slug", RUNS)
def test_the_stacks_own_launch_file_is_written_or_says_why_not(slug: str):
    given = launch_of(slug)
    if given is None:
        pytest.skip("refused as it ran")
    name, found = own_launch_file(given.layout.framework), training_artifacts(given)
    assert (name in found.files) != bool(found.missing.get(name))


def test_megatron_core_accepts_the_arguments_and_they_are_read_back_as_the_plan():
    launches = with_file("megatron")
    assert len(launches) >= 10
    for slug, given in launches.items():
        layout, accepted = given.layout, read_by_megatron_core(given)
        sizes = (accepted.tensor_model_parallel_size, accepted.pipeline_model_parallel_size, accepted.num_layers)
        assert sizes == (layout.tensor_parallel, layout.pipeline_parallel, given.question.model.num_layers), slug
        read = read_back(given)
        assert {name: read["layout"].get(name, 1) for name in DEGREES} == {
            name: getattr(layout, name) for name in DEGREES
        }, slug
        batches = (read["training"]["micro_batch_size"], read["training"]["global_batch_size"])
        assert batches == (layout.micro_batch_size, given.question.global_batch_size), slug


def read_back(given: TrainingLaunch) -> Any:
    """Return the request that the launch command is read as."""
    command = ("bash", "-c", str(training_artifacts(given).files["torchrun"]))
    container = Container(name="main", image="", command=command, args=(), env={}, resources={}, pointer="")
    (program,) = programs(container)
    read = training_launch(program.words, given.layout.gpus, container)
    assert isinstance(read, Launch)
    return read.request


def test_accelerate_starts_as_many_processes_as_there_are_gpus(tmp_path: Path):
    launches = with_file("accelerate")
    assert launches
    for slug, given in launches.items():
        found, _ = read_by_accelerate(given, tmp_path)
        assert found.num_processes == given.layout.gpus, slug


class Replicas:
    """What Megatron-DeepSpeed tells DeepSpeed of a plan's replicas."""

    def __init__(self, given: TrainingLaunch) -> None:
        self._replicas = given.layout.data_parallel

    def get_data_parallel_world_size(self) -> int:
        return self._replicas


def test_deepspeed_accepts_its_file_and_the_batch_multiplies_out(monkeypatch: pytest.MonkeyPatch):
    from deepspeed.runtime import config

    launches = with_file("deepspeed")
    assert launches
    for slug, given in launches.items():
        layout = given.layout
        monkeypatch.setattr(config, "dist", Ranks(layout.gpus))
        found = config.DeepSpeedConfig(training_artifacts(given).files["deepspeed"], mpu=Replicas(given))
        assert found.zero_optimization_stage == layout.zero_stage, slug
        sequences = found.train_micro_batch_size_per_gpu * found.gradient_accumulation_steps * layout.data_parallel
        assert sequences == given.question.global_batch_size, slug


@pytest.mark.usefixtures("torchtitan")
def test_torchtitan_reads_its_file_and_finds_the_degrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from torchtitan.config import ConfigManager

    (tmp_path / "assets/hf").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    launches = with_file("torchtitan")
    assert launches
    for slug, given in launches.items():
        (tmp_path / "torchtitan.toml").write_text(str(training_artifacts(given).files["torchtitan"]), encoding="utf-8")
        told = ConfigManager().parse_args(["--job.config_file", "torchtitan.toml"]).parallelism
        degrees = (told.tensor_parallel_degree, told.pipeline_parallel_degree, told.context_parallel_degree)
        layout = given.layout
        assert degrees == (layout.tensor_parallel, layout.pipeline_parallel, layout.context_parallel), slug
