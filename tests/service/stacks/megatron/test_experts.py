"""What Megatron-LM's commands say of experts, and that the service reads its own as the plans they were written for."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.random_plans.planning import read_request
from plimsoll.planners.plans import TrainingPlan
from plimsoll.planners.training.planning import plan_without_advice
from plimsoll.service.artifacts.training import training_artifacts
from plimsoll.service.launch.training import TrainingLaunch
from plimsoll.service.stacks.commands import training_launch
from plimsoll.service.stacks.megatron.experts import told_expert_tensor
from plimsoll.service.workloads.commands.launches import CannotRun, Launch, NotRead
from plimsoll.service.workloads.commands.shell import programs
from plimsoll.service.workloads.objects.pods import Container
from tests.service.admission.reviews import a_plain_container

MODEL = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 "
    "--bf16 --use-distributed-optimizer --swiglu --num-experts 8 --moe-ffn-hidden-size 14336"
)
MIXTRAL, QWEN3_30B, QWEN3_235B = "mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-235B-A22B"
IN_FOUR_STAGES = {"tensor_parallel": 4, "sequence_parallel": True, "pipeline_parallel": 4}
PLANS: dict[str, tuple[str, int, dict[str, Any], dict[str, Any]]] = {
    "experts beside tensor parallelism, and cut by it": (
        MIXTRAL,
        16,
        {"tensor_parallel": 4, "sequence_parallel": True, "expert_parallel": 4},
        {},
    ),
    "experts whole over tensor-parallel ranks": (
        MIXTRAL,
        16,
        {"tensor_parallel": 4, "sequence_parallel": True, "expert_parallel": 8},
        {},
    ),
    "experts not divided": (MIXTRAL, 16, {"tensor_parallel": 8, "sequence_parallel": True, "expert_parallel": 1}, {}),
    "queries' and keys' norms": (QWEN3_30B, 16, {"expert_parallel": 16}, {"recompute": "full"}),
    "experts over context-parallel ranks": (QWEN3_30B, 16, {"context_parallel": 2, "expert_parallel": 16}, {}),
    "an exchange that hides": (
        QWEN3_30B,
        16,
        {"expert_parallel": 8, "overlap": {"expert_parallel": True}},
        {"recompute": "none"},
    ),
    "parts that are recomputed": (
        QWEN3_30B,
        16,
        {"tensor_parallel": 2, "sequence_parallel": True, "expert_parallel": 8},
        {"recompute": {"modules": ["core_attn", "layernorm", "moe_act"]}},
    ),
    "Muon": (QWEN3_30B, 16, {"tensor_parallel": 2, "expert_parallel": 8}, {"optimizer": "muon"}),
    "Muon that divides its states": (QWEN3_30B, 16, {"expert_parallel": 8, "zero_stage": 1}, {"optimizer": "muon"}),
    "a pipeline": (QWEN3_235B, 128, {**IN_FOUR_STAGES, "expert_parallel": 8}, {"recompute": "full"}),
    "a pipeline with whole experts": (QWEN3_235B, 128, {**IN_FOUR_STAGES, "expert_parallel": 32}, {}),
    "a pipeline whose passes run side by side": (
        QWEN3_235B,
        128,
        {
            **IN_FOUR_STAGES,
            "virtual_pipeline": 2,
            "expert_parallel": 32,
            "pipeline_layout": "account-for-embedding-and-loss",
            "overlap": {"expert_parallel": True},
        },
        {"recompute": {"modules": ["moe_act"]}},
    ),
}


def planned(request: dict[str, Any]) -> tuple[TrainingLaunch, TrainingPlan]:
    asked = read_request(request)
    plan = plan_without_advice(asked.question).plan
    name = asked.model.name if asked.model.is_listed else None
    return TrainingLaunch(question=asked.question, plan=plan, model_config=asked.model.config, model_name=name), plan


def request(model: str, gpus: int, layout: dict[str, Any], training: dict[str, Any]) -> dict[str, Any]:
    sizes = {"sequence_length": 4096, "micro_batch_size": 1, "global_batch_size": 256}
    return {
        "model": model,
        "training": {**sizes, **training},
        "hardware": {"gpu": "h100-sxm-80gb", "gpus": gpus},
        "layout": layout,
        "framework": "megatron",
    }


@pytest.mark.parametrize("case", PLANS)
def test_the_command_of_a_plan_is_read_as_the_same_plan(case: str) -> None:
    model, gpus, layout, training = PLANS[case]
    asked = request(model, gpus, layout, training)
    given, plan = planned(asked)
    command = ("bash", "-c", str(training_artifacts(given).files["torchrun"]))
    container = Container(name="main", image="", command=command, args=(), env={}, resources={}, pointer="")
    (program,) = programs(container)
    found = training_launch(program.words, gpus, container)
    assert isinstance(found, Launch), found
    _, again = planned({**found.request, "hardware": asked["hardware"]})
    assert again.layout == plan.layout
    assert again.sharding.mesh == plan.sharding.mesh
    assert again.memory == plan.memory


def read(options: str) -> Any:
    words = tuple(f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {MODEL} {options}".split())
    return training_launch(words, 16, a_plain_container(), gpus_per_pod=8)


def test_experts_are_cut_as_the_layers_are_unless_a_command_says_otherwise() -> None:
    assert told_expert_tensor({"tensor_parallel": 4}) == 4
    assert told_expert_tensor({"tensor_parallel": 4, "expert_tensor_parallel": 1}) == 1
    assert told_expert_tensor({}) == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        # 4 replicas make up a group of 4 ranks with different experts, so each expert is planned in 4 parts.
        (
            "--tensor-model-parallel-size 4 --expert-model-parallel-size 4 --expert-tensor-parallel-size 1",
            "--expert-tensor-parallel-size 1 is not planned, --expert-tensor-parallel-size 4 is",
        ),
        (
            "--tensor-model-parallel-size 4 --expert-model-parallel-size 2 --expert-tensor-parallel-size 2",
            "--expert-tensor-parallel-size 2 is not planned",
        ),
        ("--moe-layer-freq 2", "--moe-layer-freq 2 is not read"),
        ("--moe-layer-freq ([0]*3+[1]*29)", "experts in every layer are"),
        ("--moe-shared-expert-intermediate-size 5632", "--moe-shared-expert-intermediate-size decides"),
        ("--moe-expert-capacity-factor 1.0", "--moe-expert-capacity-factor decides"),
    ],
)
def test_experts_that_are_not_planned_are_not_read(options: str, reason: str) -> None:
    found = read(options)
    assert isinstance(found, NotRead)
    assert reason in found.reason


@pytest.mark.parametrize("frequency", ["1", "([1]*32)", "[1]*32", "[1,1,1]"])
def test_experts_in_every_layer_are_read(frequency: str) -> None:
    assert isinstance(read(f"--moe-layer-freq {frequency}"), Launch)


def test_experts_without_gates_are_not_read() -> None:
    words = f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {MODEL.replace('--swiglu ', '')}"
    found = training_launch(tuple(words.split()), 16, a_plain_container(), gpus_per_pod=8)
    assert isinstance(found, NotRead)
    assert "without --swiglu" in found.reason


def test_groups_of_experts_must_divide_the_processes() -> None:
    # Cut over 4 tensor-parallel ranks as well, 8 ranks with different experts need 32 processes.
    options = "--tensor-model-parallel-size 4 --expert-model-parallel-size 8"
    found = read(options)
    assert isinstance(found, CannotRun)
    assert "expert 8 x expert-tensor 4 x pipeline 1 = 32 ranks" in found.reason
    assert isinstance(read(f"{options} --expert-tensor-parallel-size 1 --sequence-parallel"), Launch)
