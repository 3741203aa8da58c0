from __future__ import annotations

import pytest

from plimsoll.service.stacks.commands import training_launch
from plimsoll.service.workloads.commands.launches import CannotRun
from tests.service.admission.reviews import a_plain_container

COMMAND = (
    "pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --vocab-size 128256"
)
DIVIDED = "--use-distributed-optimizer --num-distributed-optimizer-instances"
HIDDEN_EXCHANGE = "--num-experts 8 --expert-model-parallel-size 2 --overlap-moe-expert-parallel-comm"


def read(flags: str, *, each: int = 8, nodes: str = "6"):
    words = f"torchrun --nproc-per-node {each} --nnodes {nodes} {COMMAND} {flags}".split()
    return training_launch(tuple(words), 48, a_plain_container(), gpus_per_pod=8)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (
            "--tensor-model-parallel-size 3",
            "32 attention heads do not divide by 3: tensor parallel 1, 2, 4, 8, 16 or 32",
        ),
        ("--pipeline-model-parallel-size 6", "32 layers do not divide by 6: pipeline parallel 1, 2, 4, 8, 16 or 32"),
        (
            "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3",
            "8 layers of a stage do not divide by 3",
        ),
        (
            "--pipeline-model-parallel-size 4 --account-for-loss-in-pipeline-split",
            "32 layers and 1 of embedding and loss (33) do not divide by 4: pipeline parallel 1, 3, 11 or 33",
        ),
        (
            "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 7",
            "25 layers are left for the 3 stages beside those of 7",
        ),
        (
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*10|t*11|t*11L",
            "the 3 stages of --pipeline-model-parallel-layout are no multiple of 2",
        ),
        (
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*10|t*11L",
            "lists 21 layers, and --num-layers says 32",
        ),
        (
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*16|t*16mL",
            "has 1 of m, and --mtp-num-layers says 0",
        ),
        # Layers for further tokens stand behind the others, which are dealt out without them.
        ("--pipeline-model-parallel-size 6 --mtp-num-layers 1", "32 layers do not divide by 6"),
        ("--context-parallel-size 3", "no multiple of 2 x context parallel 3"),
        ("--seq-length 8192", "--seq-length 8192 is above --max-position-embeddings 4096"),
        ("--expert-model-parallel-size 2", "expert parallel 2 needs --num-experts"),
        (
            "--num-experts 8 --expert-model-parallel-size 3",
            "8 experts do not divide by 3: expert parallel 1, 2, 4 or 8",
        ),
        ("--tensor-model-parallel-size 2 --tp-comm-overlap", "--tp-comm-overlap needs --sequence-parallel"),
        ("--overlap-moe-expert-parallel-comm", "needs --expert-model-parallel-size above 1"),
        (
            f"{HIDDEN_EXCHANGE} --pipeline-model-parallel-size 2",
            "needs --num-layers-per-virtual-pipeline-stage",
        ),
        (
            f"{HIDDEN_EXCHANGE} --recompute-granularity full",
            "goes without --recompute-granularity full",
        ),
        # 48 processes: 32 ranks of a replica do not divide them.
        ("--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4", "do not divide its 48 processes"),
        # 48 replicas of one sequence: 96 and 144 are the nearest.
        ("--global-batch-size 100", "no multiple of 48 (micro-batch 1 x 48 replicas): 96 or 144"),
        (f"{DIVIDED} 5", "--num-distributed-optimizer-instances 5 does not divide 48 ranks of data x context parallel"),
        # Of 48 ranks 12 share the experts of each of four.
        (
            f"{DIVIDED} 8 --num-experts 8 --expert-model-parallel-size 4",
            "8 does not divide 12 ranks that share experts",
        ),
        ("--num-distributed-optimizer-instances 2", "instances needs --use-distributed-optimizer"),
        ("--tensor-model-parallel-size 0", "do not divide its 48 processes"),
    ],
)
def test_megatron_refuses_these_arguments(flags: str, reason: str):
    found = read(flags)
    assert isinstance(found, CannotRun)
    assert reason in found.reason


@pytest.mark.parametrize(
    "flags",
    [
        "--tensor-model-parallel-size 8 --global-batch-size 96",
        "--tensor-model-parallel-size 16",  # 8 query groups divide it
        "--pipeline-model-parallel-size 6 --decoder-first-pipeline-num-layers 2",
        "--pipeline-model-parallel-size 16 --mtp-num-layers 1 --pipeline-model-parallel-layout Et*4|(tt|)*14,mL",
        "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*3|(tt|)*14,tL",
        "--pipeline-model-parallel-size 3 --account-for-loss-in-pipeline-split",
        "--global-batch-size 100 --rampup-batch-size 48 48 1000",
        "--num-experts 8 --expert-model-parallel-size 2",
        f"{DIVIDED} 6",
        HIDDEN_EXCHANGE,
        f"{HIDDEN_EXCHANGE} --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4",
    ],
)
def test_megatron_starts_with_these(flags: str):
    assert not isinstance(read(flags), CannotRun)


def test_the_processes_of_a_launcher_that_a_variable_counts_are_not_known():
    # The pods' own number is taken, which decides nothing: they may be some of more.
    found = read("--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4", nodes="$NNODES")
    assert not isinstance(found, CannotRun)
