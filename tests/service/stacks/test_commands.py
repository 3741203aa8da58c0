from __future__ import annotations

import pytest

from plimsoll.service.stacks.commands import launchers, training_launch
from plimsoll.service.workloads.commands.launched_ranks import Ranks, launched_ranks, mpi_ranks
from plimsoll.service.workloads.commands.launches import CannotRun, Launch
from tests.service.admission.reviews import a_plain_container

TRAINER = "train.py --model_name_or_path m --max_seq_length 4096 --per_device_train_batch_size 2"


@pytest.mark.parametrize(
    ("command", "each", "nodes"),
    [
        ("torchrun --nproc-per-node 8 --nnodes=2", 8, 2),
        ("/opt/bin/torchrun --nproc_per_node=4", 4, 1),
        ("python -m torch.distributed.run --nproc-per-node 2", 2, 1),
        ("accelerate launch --num_processes 16 --num_machines 2", 8, 2),
        ("deepspeed --num_gpus 4 --num_nodes 3", 4, 3),
    ],
)
def test_launchers_say_how_many_processes_they_start(command: str, each: int, nodes: int):
    ranks = launched_ranks((*command.split(), "train.py"), {}, 8, launchers())
    assert (ranks.each, ranks.nodes, ranks.all) == (each, nodes, each * nodes)


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc-per-node 8 --nnodes 1:4",
        "torchrun --nproc-per-node 8 --nnodes $N",
        "torchrun",
        "accelerate launch",
        "accelerate launch --cpu --num_processes 8",
        "python train.py --nproc-per-node 8",
    ],
)
def test_what_is_not_said_in_numbers_is_not_known(command: str):
    assert launched_ranks(tuple(command.split()), {}, 8, launchers()) is None


def launched(command: str, *, gpus: int = 4, gpus_per_pod: int = 4):
    words = tuple(f"{command} {TRAINER}".split())
    return training_launch(words, gpus, a_plain_container(), gpus_per_pod=gpus_per_pod)


@pytest.mark.parametrize("command", ["torchrun --nproc-per-node 8", "deepspeed --num_gpus 8"])
def test_more_processes_than_gpus_cannot_run(command: str):
    found = launched(command)
    assert isinstance(found, CannotRun)
    assert found.reason == "it starts 8 processes on each node, and a pod has 4 GPUs: start 4, or ask for more"


def test_fewer_processes_than_gpus_run_on_that_many():
    found = launched("torchrun --nproc-per-node 2")
    assert isinstance(found, Launch)
    assert found.request["layout"]["data_parallel"] == 2
    assert found.notes == ("it starts 2 processes on each node, and 2 GPUs of a pod stay idle",)


def test_a_pod_may_be_one_of_several_nodes():
    found = launched("torchrun --nproc-per-node 4 --nnodes 4")
    assert isinstance(found, Launch)
    assert (found.request["layout"]["data_parallel"], found.spans_pods) == (16, True)


@pytest.mark.parametrize(
    ("command", "env", "each", "nodes"),
    [
        ("torchrun --nproc-per-node gpu", {}, 8, 1),
        ("torchrun", {"PET_NPROC_PER_NODE": "auto", "PET_NNODES": "4"}, 8, 4),
        ("torchrun --nproc-per-node 2", {"PET_NPROC_PER_NODE": "auto", "PET_NNODES": "4"}, 2, 4),
    ],
)
def test_torchrun_takes_all_gpus_and_its_options_from_variables(command: str, env: dict[str, str], each, nodes):
    assert launched_ranks(tuple(command.split()), env, 8, launchers()) == Ranks(each=each, nodes=nodes)


@pytest.mark.parametrize(("processes", "pods", "expected"), [(32, 4, Ranks(each=8, nodes=4)), (6, 4, None)])
def test_mpi_deals_its_processes_out_over_the_pods(processes: int, pods: int, expected: Ranks | None):
    assert mpi_ranks(processes, pods) == expected
