"""Four real ranks, the planner and the trace, to the byte."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from plimsoll.planners.families import describe_config
from plimsoll.planners.sharding import ShardLayout, rank_shards
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.service.worker.proofs.device.running import held_bytes, kept_bytes
from tests.service.worker.cases import LLAMA, job, traced

RANKS = 4
# All cases together take half a minute; what takes so long is stuck: such a group is ended, and a second one is asked.
PATIENCE_SECONDS = 180
FP32_BYTES = 4
# AdamW keeps two moments an element, and one fp32 step counter a tensor.
MOMENTS, STEP_COUNTER_BYTES = 2, 4
# The planner's tensors are the checkpoint's, w1 and w3; transformers holds an experts' gate and up as one.
FUSED_TENSORS = {"mixtral": 1}
# What the CUDA kernel of flash attention keeps and the CPU's does not: a seed and an offset, 16 and 8 bytes, a layer.
RANDOM_STATE_BYTES = 24

# 101 rows and a feed-forward of 182 divide neither by 4 nor, after a cut in 2, by 2: every shard has padding somewhere.
UNEVEN = LLAMA | {"intermediate_size": 182}
MODELS = {
    "llama": UNEVEN,
    "qwen": UNEVEN | {"model_type": "qwen3"},
    # 3 experts over 4 ranks leave one with padding alone; the grouped product wants rows of 16 bytes.
    "mixtral": LLAMA | {"model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2},
}
LAYOUTS = {
    "resharded": {"zero_stage": 3},
    "not-resharded": {"zero_stage": 2},
    "tensor-2-data-2": {"tensor_parallel": 2, "data_parallel": 2},
    "hybrid-2-2": {"shard_group": 2},
}
CASES = {
    f"{model}-{layout}": {"config": config, **degrees}
    for model, config in MODELS.items()
    for layout, degrees in LAYOUTS.items()
    if (model, layout) != ("mixtral", "tensor-2-data-2")  # no trace divides experts over tensor-parallel ranks
}


class Stuck(Exception):
    """A group of ranks got no further; its last words are the message."""


@pytest.fixture(scope="module")
def accounts(tmp_path_factory):
    """Return what each rank said of each case; all cases run in one group, since starting it takes longest."""
    try:
        return accounts_of_group(tmp_path_factory.mktemp("ranks"))
    except Stuck as words:
        sys.stderr.write(f"{words}\n")
        return accounts_of_group(tmp_path_factory.mktemp("ranks"))


def accounts_of_group(folder):
    (folder / "cases.json").write_text(json.dumps(CASES))
    processes = [started(folder, rank) for rank in range(RANKS)]
    try:
        statuses = ended(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    words = "\n".join((folder / f"rank{rank}.log").read_text()[-4_000:] for rank in range(RANKS))
    if statuses is None:
        raise Stuck(words)
    assert statuses == [0] * RANKS, words
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)]


def started(folder, rank):
    """Start a rank; its last words, with the stack of every thread if it is ended by a signal, go to a file."""
    numbers = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with (folder / f"rank{rank}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "tests.service.worker.training.gloo_rank", str(folder)],
            env=os.environ | numbers,
            stdout=log,
            stderr=log,
        )


def ended(processes):
    """Return the statuses once all have ended or one has failed, nothing when they are stuck; none is left running."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while None in (statuses := [process.poll() for process in processes]):
        is_stuck = time.monotonic() > deadline
        if any(statuses) or is_stuck:
            for process in processes:
                process.send_signal(signal.SIGABRT)
            statuses = [process.wait() for process in processes]
            return None if is_stuck else statuses
        time.sleep(0.1)
    return statuses


@pytest.mark.slow
@pytest.mark.xdist_group("real_ranks")
@pytest.mark.parametrize("case", CASES)
def test_every_rank_holds_what_the_planner_says_it_holds(accounts, case):
    for rank in range(RANKS):
        assert accounts[rank][case]["held"] == planned_bytes(case, rank)


@pytest.mark.slow
@pytest.mark.xdist_group("real_ranks")
@pytest.mark.parametrize("case", CASES)
def test_every_rank_keeps_for_the_backward_pass_what_the_trace_keeps(accounts, case):
    ledger = traced(**CASES[case])
    of_cuda = RANDOM_STATE_BYTES * CASES[case]["config"]["num_hidden_layers"]
    assert [rank[case]["kept_for_backward_bytes"] for rank in accounts] == [kept_bytes(ledger) - of_cuda] * RANKS
    assert accounts[0][case]["held"] == held_bytes(ledger)


def planned_bytes(case, rank):
    """Return what the planner's sharding says of a rank: fp32 parameters and gradients, AdamW's states."""
    wanted = job(**CASES[case])
    layout = ShardLayout(
        tensor_parallel=wanted.tensor_parallel,
        shard_ranks=wanted.shard_group,
        replicas=wanted.data_parallel // wanted.shard_group,
    )
    spec = describe_config(wanted.config, name=case)
    held = list(rank_shards(spec, layout, load_profile(wanted.framework).sharding_policy(wanted.zero_stage), rank))
    stored = FP32_BYTES * sum(shard.stored_elements for shard in held)
    moments = FP32_BYTES * MOMENTS * sum(shard.elements for shard in held)
    fused = FUSED_TENSORS.get(wanted.config["model_type"], 0) * wanted.config["num_hidden_layers"]
    return {
        "parameter": stored,
        "gradient": stored,
        "optimizer_state": moments + STEP_COUNTER_BYTES * (len(held) - fused),
    }
