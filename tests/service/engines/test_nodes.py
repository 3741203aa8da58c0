from __future__ import annotations

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.service.admission.judge import AdmissionService
from plimsoll.service.admission.policy import Policies
from plimsoll.service.admission.review import read_review
from plimsoll.service.admission.sizing import Sizer
from plimsoll.service.engines.engine import serving_launch
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.resolving import ModelResolver
from plimsoll.service.workloads.commands.launches import CannotRun, Launch
from tests.service.admission.reviews import a_container, a_plain_container, a_review, an_object
from tests.service.admission.test_judge import Plans

RAY_LEADER = (
    "bash /vllm-workspace/examples/online_serving/multi-node-serving.sh leader --ray_cluster_size=$(LWS_GROUP_SIZE); "
    "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 "
)
SMALL = "Qwen/Qwen3-30B-A3B --max-model-len 8192"
VLLM, SGLANG = f"vllm serve {SMALL}", "python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct"
ON_TWO = "--nnodes $(LWS_GROUP_SIZE) --node-rank $(LWS_WORKER_INDEX) --dist-init-addr $(LWS_LEADER_ADDRESS):20000"


@pytest.fixture(scope="module")
def judge() -> AdmissionService:
    known = catalogue()
    sizer = Sizer(ModelResolver(known, Settings()), known)
    return AdmissionService(answers=sizer, plans=Plans(), catalogue=known, policies=Policies(None))


async def judged(judge: AdmissionService, command, *, size: int, kind: str = "LeaderWorkerSet") -> tuple[bool, str]:
    container = a_container(gpus=8, command=list(command), image="x")
    answer = await judge.review(read_review(a_review(kind, an_object(kind, container, pods=size))))
    return answer.is_allowed, " ".join((answer.message, *answer.warnings))


@pytest.mark.parametrize(
    ("flags", "size", "reason"),
    [
        ("-tp 8 -pp 2 --distributed-executor-backend ray", 2, None),
        # 8 x 3 ranks on 2 x 8 GPUs.
        ("-tp 8 -pp 3 --distributed-executor-backend ray", 2, "needs 24 GPUs by its own degrees, the pods ask for 16"),
        ("-tp 16 --distributed-executor-backend ray", 1, "needs 16 GPUs by its own degrees, the pods ask for 8"),
    ],
)
async def test_rays_cluster_is_the_leader_worker_set(judge, flags: str, size: int, reason: str | None):
    is_allowed, told = await judged(judge, ["sh", "-c", RAY_LEADER + flags], size=size)
    assert (is_allowed, (reason or "") in told) == (reason is None, True)


@pytest.mark.parametrize(
    ("command", "size", "reason"),
    [
        (f"{SGLANG} --tp 16 {ON_TWO}", 2, None),
        (f"{VLLM} -tp 4 -dp 4 --data-parallel-size-local 2 --data-parallel-address $(LWS_LEADER_ADDRESS)", 2, None),
        # 2 x 8 ranks on a pod of 8.
        (
            f"{VLLM} -tp 4 -dp 8 --data-parallel-size-local 4 --data-parallel-address $(LWS_LEADER_ADDRESS)", 4,
            "needs 16 GPUs on each node by its own degrees, a pod asks for 8",
        ),
        # 4 ranks of 4, two on each of 2 nodes, and one pod only.
        (
            f"{VLLM} -tp 4 -dp 4 --data-parallel-size-local 2 --data-parallel-address $(LWS_LEADER_ADDRESS)", 1,
            "needs 16 GPUs by its own degrees, the pods ask for 8",
        ),
        (f"{SGLANG} --tp 16 --nnodes 4 --node-rank 0", 2, "needs 4 nodes by its own arguments, and has 2 pods"),
        (f"{VLLM} -tp 8 -pp 2 --nnodes 4 --node-rank 0", 2, "needs 4 nodes"),
        (f"{SGLANG} --tp 32 --nnodes 2 --node-rank 0", 2, "needs 16 GPUs on each node"),
        # The head is another object's, or may be.
        (f"{VLLM} -tp 4 -dp 16 -dpl 2 --data-parallel-address $(DP_HEAD)", 1, None),
        (f"{VLLM} -tp 4 -dp 16 -dpl 2 --data-parallel-address dp-head.serving", 1, None),
    ],
)  # fmt: skip
async def test_the_nodes_of_an_engine_are_the_pods_of_a_leader_worker_set(judge, command, size, reason):
    is_allowed, told = await judged(judge, command.split(), size=size)
    assert (is_allowed, (reason or "") in told) == (reason is None, True)


async def test_the_nodes_of_a_stateful_set_may_be_others(judge):
    command = f"{SGLANG} --tp 16 --nnodes 2 --node-rank 0 --dist-init-addr head:20000".split()
    assert (await judged(judge, command, size=1, kind="StatefulSet"))[0]
    is_allowed, told = await judged(judge, [word.replace("16", "32") for word in command], size=1, kind="StatefulSet")
    assert (is_allowed, "needs 16 GPUs on each node" in told) == (False, True)


def read(line: str):
    return serving_launch(tuple(line.split()), a_plain_container(), gpus=8)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("vllm serve m -tp 8 -pp 2 --nnodes 3", "its 16 ranks do not divide by --nnodes 3"),
        ("vllm serve m -tp 8 --nnodes 2 --node-rank 2", "--node-rank 2 is not below --nnodes 2"),
        ("vllm serve m -tp 16 --nnodes 2 --distributed-executor-backend ray", "leave --nnodes out"),
        ("vllm serve m -dp 2 -dpl 4", "--data-parallel-size-local 4 is more than --data-parallel-size 2"),
        ("vllm serve m -dp 2 -dpl 0 --headless", "starts no engine"),
        (f"{SGLANG} --tp 8 --nnodes 3", "tp x pp = 8 ranks do not divide by --nnodes 3"),
        (f"{SGLANG} --tp 4 --pp 3 --nnodes 2", "3 pipeline stages and --nnodes 2 do not divide each other"),
        (f"{SGLANG} --tp 8 --dp 2 --nnodes 2", "add --enable-dp-attention"),
    ],
)
def test_engines_refuse_these_nodes(line: str, reason: str):
    found = read(line)
    assert isinstance(found, CannotRun)
    assert reason in found.reason


@pytest.mark.parametrize(
    ("line", "nodes", "each", "spans"),
    [
        (f"{SGLANG} --tp 16 --pp 2 --nnodes 4 --node-rank 3", 4, 8, True),
        (f"{SGLANG} --tp 16 --dp 16 --enable-dp-attention --nnodes 2", 2, 8, True),
        (f"{SGLANG} --tp 8 --nnodes 1 --node-rank 0", 1, None, False),
        (f"{SGLANG} --tp 8 --nnodes $N --node-rank $R", None, None, True),
        ("vllm serve m -tp 8 -pp 2 --nnodes 2 --node-rank 0", 2, 8, True),
        ("vllm serve m -dp 16 -dpl 8 --headless", None, 8, True),
        ("vllm serve m -dp 16 --data-parallel-rank 3", None, 1, True),
        ("vllm serve m -dp 16 -dpl 0", None, 0, True),
        ("vllm serve m -dp 4", None, 4, False),
        ("vllm serve m -tp 2 -dp 8 --data-parallel-backend ray -dpl 2", None, None, True),
    ],
)
def test_ranks_lie_on_nodes_as_the_arguments_say(line: str, nodes, each, spans: bool):
    found = read(line)
    assert isinstance(found, Launch)
    assert (found.nodes, found.gpus_per_node, found.spans_pods) == (nodes, each, spans)
