"""One command is judged alike whatever kind of object starts it."""

from __future__ import annotations

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.service.admission.judge import AdmissionService
from plimsoll.service.admission.policy import Policies
from plimsoll.service.admission.review import read_review
from plimsoll.service.admission.sizing import Sizer
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.resolving import ModelResolver
from tests.service.admission.reviews import a_container, a_review, an_object
from tests.service.admission.test_judge import Plans

ONE_POD = ("Pod", "Deployment", "StatefulSet", "InferenceService")
ONE_JOB = ("Job", "JobSet", "PyTorchJob", "MPIJob", "TrainJob", "RayJob", "VolcanoJob", "LeaderWorkerSet")
MEGATRON = (
    "pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --swiglu --seq-length 4096 "
    "--max-position-embeddings 4096 --vocab-size 128256 --micro-batch-size 1 --bf16 --use-distributed-optimizer "
    "--recompute-activations"
)
TRAINER = (
    "train.py --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 1 --max_seq_length 4096 "
    "--bf16 --gradient_checkpointing"
)
LLAMA, DEGREES = "meta-llama/Llama-3.1-8B-Instruct", "--tensor-model-parallel-size 8"
NODES = "torchrun --nnodes 4 --nproc-per-node 8"


@pytest.fixture(scope="module")
def judge() -> AdmissionService:
    known = catalogue()
    sizer = Sizer(ModelResolver(known, Settings()), known)
    return AdmissionService(answers=sizer, plans=Plans(), catalogue=known, policies=Policies(None))


async def judged(judge: AdmissionService, kind: str, command: str, *, gpus: int = 8, pods: int = 1) -> tuple[bool, str]:
    container = a_container(gpus=gpus, command=command.split())
    answer = await judge.review(read_review(a_review(kind, an_object(kind, container, pods=pods))))
    return answer.is_allowed, " ".join((answer.message, *answer.warnings))


@pytest.mark.parametrize("kind", [*ONE_POD, *ONE_JOB])
@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (f"vllm serve {LLAMA} -tp 4 --max-model-len 8192", None),
        (f"vllm serve {LLAMA} -tp 3", "Possible: 1, 2, 4"),
        (f"vllm serve {LLAMA} -tp 16", "needs 16 GPUs by its own degrees, the pods ask for 8"),
        (f"torchrun --nproc-per-node 8 {TRAINER} --fsdp full_shard", None),
        (f"torchrun --nproc-per-node 16 {TRAINER} --fsdp full_shard", "start 8, or ask for more"),
        (f"torchrun --nproc-per-node 8 {MEGATRON} {DEGREES} --global-batch-size 8", None),
        (f"torchrun --nproc-per-node 8 {MEGATRON} --tensor-model-parallel-size 3", "do not divide by 3"),
    ],
)
async def test_one_pods_command_is_judged_alike_in_every_kind(judge, kind: str, command: str, reason: str | None):
    is_allowed, told = await judged(judge, kind, command)
    assert is_allowed is (reason is None)
    assert (reason or "") in told
    assert "did not judge" not in told


@pytest.mark.parametrize("kind", ONE_JOB)
@pytest.mark.parametrize(("batch", "is_allowed"), [(64, True), (66, False)])
async def test_a_batch_of_several_pods_is_judged_alike_in_every_kind_of_job(judge, kind, batch, is_allowed):
    # 32 processes in replicas of 8: 4 replicas, and 66 is no multiple of them.
    is_so, told = await judged(judge, kind, f"{NODES} {MEGATRON} {DEGREES} --global-batch-size {batch}", pods=4)
    assert is_so is is_allowed
    assert ("66 is no multiple of 4 (micro-batch 1 x 4 replicas): 64 or 68" in told) is not is_allowed
    assert "did not judge" not in told


@pytest.mark.parametrize(
    ("kind", "launcher"),
    [
        # Kubeflow's controllers tell torchrun its nodes and, of all GPUs, its processes.
        ("PyTorchJob", "torchrun"),
        ("TrainJob", "torchrun"),
        ("PyTorchJob", "torchrun --nproc-per-node gpu"),
        ("MPIJob", "mpirun -np 32 python"),
    ],
)
async def test_processes_that_the_controller_or_mpi_counts_are_known(judge, kind: str, launcher: str):
    is_allowed, told = await judged(judge, kind, f"{launcher} {MEGATRON} {DEGREES} --global-batch-size 66", pods=4)
    assert not is_allowed
    assert "64 or 68" in told


@pytest.mark.parametrize(
    ("kind", "is_allowed"),
    [*((kind, False) for kind in ONE_JOB if kind != "Job"), ("Job", True), ("StatefulSet", True)],
)
async def test_more_nodes_than_pods_never_start_where_all_pods_are_the_objects(judge, kind: str, is_allowed: bool):
    # The nodes of a Job or StatefulSet may be those of others beside it.
    pods = 1 if kind == "StatefulSet" else 2
    is_so, told = await judged(judge, kind, f"{NODES} {TRAINER} --fsdp full_shard", pods=pods)
    assert is_so is is_allowed
    assert ("needs 4 nodes by its own arguments, and has 2 pods with GPUs" in told) is not is_allowed
