"""Launch files of training plans: accepted by the programs they are for."""

from __future__ import annotations

import shlex

import pytest

from planners.catalogue import catalogue
from planners.hardware import GpuCount, Hardware
from planners.plans import Layout
from service.artifacts.training import training_artifacts


def hardware(*, gpus_per_node: int = 8, gpus: int = 1) -> Hardware:
    gpu = catalogue().gpu("h100-sxm-80gb")
    return Hardware(gpu=gpu, gpus=GpuCount(minimum=gpus, maximum=gpus), gpus_per_node=gpus_per_node)


def layout(gpus: int) -> Layout:
    return Layout(
        framework="fsdp2", gpus=gpus, data_parallel=gpus, tensor_parallel=1, pipeline_parallel=1, virtual_pipeline=1,
        context_parallel=1, expert_parallel=1, sequence_parallel=False, zero_stage=3, shard_group=gpus, offload="none",
        offload_target="cpu", micro_batch_size=1, gradient_accumulation_steps=1, recompute="none",
        recompute_layers=None, activation_offload=False, fused_cross_entropy=False,
    )  # fmt: skip


@pytest.mark.parametrize(("gpus", "nodes", "processes"), [(1, 1, 1), (8, 1, 8), (16, 2, 8)])
def test_torchrun_accepts_its_command(gpus: int, nodes: int, processes: int):
    from torch.distributed.run import get_args_parser

    program, *arguments = shlex.split(training_artifacts(layout(gpus), hardware())["torchrun"])
    parsed = get_args_parser().parse_args(arguments)
    assert program == "torchrun"
    assert (parsed.nnodes, parsed.nproc_per_node) == (str(nodes), str(processes))
    assert parsed.training_script == "train.py"


def test_uneven_nodes_have_no_single_command():
    assert training_artifacts(layout(12), hardware()) == {}
