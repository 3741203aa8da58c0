"""How a job's states are held, and whose code runs."""

import pytest

from plimsoll.service.worker.jobs.reading import read_job
from plimsoll.service.worker.jobs.states import (
    has_own_experts,
    is_fully_sharded,
    keeps_master_weights,
    runs_own_code,
    traces_own_code,
)
from plimsoll.service.worker.stacks.found import find_stack
from tests.service.worker.cases import config, job, request


@pytest.mark.parametrize(
    ("framework", "ranks", "method", "ran"),
    [("ddp", 1, "full", True), ("ddp", 2, "full", False), ("ddp", 1, "lora", False), ("accelerate", 1, "full", False)],
)
def test_a_stack_s_own_code_runs_only_where_it_adds_nothing_to_torch(framework, ranks, method, ran):
    job = read_job(request(layout={"framework": framework, "data_parallel": ranks}, training={"method": method}))
    assert runs_own_code(job, find_stack(framework)) is ran


@pytest.mark.parametrize(
    ("changes", "is_own"),
    [
        ({"framework": "deepspeed"}, True),
        ({"framework": "deepspeed", "optimizer": "adamw-8bit"}, False),
        ({"framework": "accelerate"}, True),
        ({"framework": "accelerate", "fused_cross_entropy": True}, False),
        ({"framework": "torchtune", "precision": "bf16"}, True),
        # Shapes stand in for its kernels.
        ({"framework": "megatron", "zero_stage": 1}, False),
        ({"framework": "fsdp2"}, False),
        ({"framework": "ddp", "zero_stage": 0, "data_parallel": 1}, True),
    ],
)
def test_a_trace_is_of_a_stack_s_own_code_where_nothing_stands_in_for_it(changes, is_own):
    wanted = job(**changes)
    assert traces_own_code(wanted, find_stack(wanted.framework)) is is_own


@pytest.mark.parametrize(
    ("framework", "stage", "sharded"),
    [("fsdp2", 3, True), ("fsdp2", 2, True), ("accelerate", 0, False), ("megatron", 1, False), ("deepspeed", 3, False)],
)
def test_fsdp2_holds_parameters_from_stage_two_on_but_where_a_stack_has_an_engine(framework, stage, sharded):
    assert is_fully_sharded(job(framework=framework, zero_stage=stage), find_stack(framework)) is sharded


@pytest.mark.parametrize(
    ("framework", "precision", "kept"),
    [("megatron", "bf16-mixed", True), ("megatron", "bf16", False), ("ddp", "bf16-mixed", False)],
)
def test_an_fp32_copy_is_kept_of_16_bit_parameters_alone(framework, precision, kept):
    wanted = job(framework=framework, zero_stage=0, precision=precision)
    assert keeps_master_weights(wanted, find_stack(framework)) is kept


@pytest.mark.parametrize(
    ("framework", "experts", "expert_parallel", "own"),
    [("megatron", True, 1, True), ("megatron", False, 1, False), ("fsdp2", True, 1, False), ("fsdp2", True, 2, True)],
)
def test_a_stack_s_own_way_through_experts_is_taken_where_they_are_grouped_or_dealt(
    framework, experts, expert_parallel, own
):
    model = config(model_type="mixtral" if experts else "llama")
    wanted = job(framework=framework, config=model, expert_parallel=expert_parallel)
    assert has_own_experts(wanted, find_stack(framework)) is own
