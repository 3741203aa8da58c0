"""Reading the job to trace, and what is refused."""

import pytest

from planners.errors import InvalidQuestion, NotYetAvailable
from service.worker.dry_run.job import read_job
from service.worker.dry_run.stacks import find_stack
from service.worker.dry_run.traceable import refuse_untraced_sharding
from tests.service.worker.dry_run.cases import config, request


def test_a_job_takes_its_batch_from_the_plan_and_its_precision_from_the_request():
    job = read_job(request())
    assert (job.micro_batch_tokens, job.accumulation_steps, job.precision, job.world_size) == (64, 3, "bf16-mixed", 4)


@pytest.mark.parametrize(
    "layout",
    [
        {"pipeline_parallel": 2},
        {"virtual_pipeline": 2},
        {"context_parallel": 2},
        {"expert_parallel": 2},
        {"offload": "optimizer"},
        {"activation_offload": True},
        {"recompute": "sometimes"},
        {"tensor_parallel": 4},  # two key-value heads
        {"tensor_parallel": 3},
    ],
)
def test_a_layout_that_is_not_traced_is_refused_by_name(layout):
    with pytest.raises(NotYetAvailable) as refusal:
        read_job(request(layout=layout))
    assert refusal.value.pointer.startswith("/layout/")


@pytest.mark.parametrize(
    "training",
    [
        {"method": "lora"},
        {"precision": "fp8-mixed"},
        {"optimizer": "lion"},
        {"attention": "linear"},
        {"kernels": "compiled"},
        {"gradient_dtype": "bf16"},
        {"optimizer_state_dtype": "bf16"},
        {"evaluation": {"batch_size": 8}},
        {"expert_imbalance": 1.5},
        {"companions": [{"role": "reference"}]},
    ],
)
def test_training_that_is_not_traced_is_refused_by_name(training):
    with pytest.raises(NotYetAvailable) as refusal:
        read_job(request(training=training))
    assert refusal.value.pointer.startswith("/training/")


def test_a_sequence_that_does_not_divide_over_the_ranks_is_refused():
    with pytest.raises(NotYetAvailable, match="33 tokens"):
        read_job(request(training={"sequence_length": 33}, layout={"tensor_parallel": 2, "sequence_parallel": True}))


def test_a_family_that_is_not_traced_is_refused():
    with pytest.raises(NotYetAvailable, match="gpt2"):
        read_job(request(model=config(model_type="gpt2")))


def test_a_plan_without_a_layout_field_is_no_question():
    incomplete = request()
    del incomplete["plan"]["layout"]["zero_stage"]
    with pytest.raises(InvalidQuestion, match="zero_stage"):
        read_job(incomplete)


def test_a_stack_that_is_not_traced_is_refused():
    with pytest.raises(NotYetAvailable, match="nanotron"):
        find_stack("nanotron")


@pytest.mark.parametrize(("framework", "kernels"), [("accelerate", "fused"), ("megatron", "eager")])
def test_kernels_that_a_stack_is_not_traced_with_are_refused(framework, kernels):
    with pytest.raises(NotYetAvailable, match=kernels) as refusal:
        find_stack(framework, kernels)
    assert refusal.value.pointer == "/training/kernels"


@pytest.mark.parametrize(("framework", "kernels"), [("accelerate", "eager"), ("megatron", "fused")])
def test_naming_the_kernels_a_stack_is_traced_with_changes_nothing(framework, kernels):
    assert find_stack(framework, kernels) == find_stack(framework)


@pytest.mark.parametrize(
    ("framework", "layout"),
    [
        ("megatron", {"zero_stage": 2}),
        ("accelerate", {"zero_stage": 1}),
        ("megatron", {"zero_stage": 0, "tensor_parallel": 2, "sequence_parallel": True}),
        ("fsdp2", {"tensor_parallel": 2, "fused_cross_entropy": True}),
    ],
)
def test_a_sharding_that_is_not_traced_of_a_stack_is_refused_by_name(framework, layout):
    job = read_job(request(layout={"framework": framework, **layout}))
    with pytest.raises(NotYetAvailable) as refusal:
        refuse_untraced_sharding(job, find_stack(framework))
    assert refusal.value.pointer.startswith("/layout/")


def test_a_sharding_that_is_traced_is_not_refused():
    job = read_job(request(layout={"framework": "fsdp2", "zero_stage": 3}))
    refuse_untraced_sharding(job, find_stack("fsdp2"))
