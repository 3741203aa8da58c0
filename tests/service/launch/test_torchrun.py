"""`torchrun` commands: accepted by torch's own parser."""

from __future__ import annotations

import shlex
from argparse import Namespace

import pytest

from plimsoll.service.artifacts.training import training_artifacts
from plimsoll.service.launch.training import TrainingLaunch
from tests.service.stacks.launches import launch


def parsed(given: TrainingLaunch) -> Namespace:
    from torch.distributed.run import get_args_parser

    program, *arguments = shlex.split(training_artifacts(given).files["torchrun"])
    assert program == "torchrun"
    return get_args_parser().parse_args(arguments)


@pytest.mark.parametrize(("gpus", "nodes", "processes"), [(1, 1, 1), (8, 1, 8), (16, 2, 8)])
def test_every_gpu_has_a_process(gpus: int, nodes: int, processes: int):
    found = parsed(launch("accelerate", data_parallel=gpus))
    assert (found.nnodes, found.nproc_per_node) == (str(nodes), str(processes))
    assert found.training_script == "train.py"


def test_several_nodes_meet_at_one_of_them():
    found = parsed(launch("accelerate", data_parallel=16))
    assert (found.rdzv_backend, found.rdzv_endpoint, found.standalone) == ("c10d", "$HEAD_NODE:29500", False)
    assert found.max_restarts == 3


def test_a_job_alone_on_its_node_meets_nobody():
    assert parsed(launch("accelerate", data_parallel=8)).standalone


def test_nodes_come_and_go_where_every_number_of_them_runs_the_plan():
    elastic = launch("fsdp2", data_parallel=16, zero_stage=3, elastic_gpus=(8, 16, 24, 64))
    assert parsed(elastic).nnodes == "1:3"


def test_megatron_follows_the_world_in_pipelines_too():
    elastic = launch("megatron", data_parallel=8, pipeline_parallel=2, elastic_gpus=(8, 16, 32))
    assert "--nnodes=1:2 " in str(training_artifacts(elastic).files["torchrun"])


@pytest.mark.parametrize(
    "fixed",
    [
        launch("fsdp2", data_parallel=16, zero_stage=3, elastic_gpus=(16,)),
        launch("fsdp2", data_parallel=16, zero_stage=3, shard_group=8, elastic_gpus=(8, 16, 24)),
        # Its file says how many sequences go through the pipeline at once.
        launch("fsdp2", data_parallel=8, pipeline_parallel=2, zero_stage=3, elastic_gpus=(8, 16, 24)),
        # Its file names the accumulation, which another number of nodes would change.
        launch("deepspeed", data_parallel=16, zero_stage=3, elastic_gpus=(8, 16, 24)),
    ],
    ids=["no-other-size", "hybrid", "pipeline", "accumulation-in-the-file"],
)
def test_other_jobs_keep_their_nodes(fixed: TrainingLaunch):
    assert parsed(fixed).nnodes == "2"


def test_uneven_nodes_have_no_single_command():
    found = training_artifacts(launch("accelerate", data_parallel=12))
    assert "torchrun" not in found.files
    assert found.missing["torchrun"] == ("12 GPUs are not a whole number of nodes.",)


def test_torchtitan_is_started_with_its_file():
    found = parsed(launch("fsdp2", data_parallel=8, zero_stage=3))
    assert (found.module, found.training_script) == (True, "torchtitan.train")
    assert found.training_script_args == ["--job.config_file", "torchtitan.toml"]
