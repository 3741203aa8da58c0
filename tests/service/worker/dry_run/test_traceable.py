import pytest

from planners.errors import NotYetAvailable
from planners.questions import Lora
from service.worker.dry_run.stacks import find_stack
from service.worker.dry_run.traceable import refuse_untraced_sharding
from tests.service.worker.dry_run.cases import config, job

MIXTRAL = config(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2)
EXPERTS = {"framework": "fsdp2", "config": MIXTRAL, "expert_parallel": 2}
GROUPED = EXPERTS | {"framework": "megatron", "zero_stage": 1}
CONTEXT = {"framework": "fsdp2", "context_parallel": 2}


def check(**changes):
    wanted = job(**changes)
    refuse_untraced_sharding(wanted, find_stack(wanted.framework))


@pytest.mark.parametrize(
    "wanted",
    [
        EXPERTS,
        EXPERTS | {"pipeline_parallel": 2},
        GROUPED,
        GROUPED | {"tensor_parallel": 2, "sequence_parallel": True},
        GROUPED | {"context_parallel": 2},
        EXPERTS | {"recompute": "selective"},
        EXPERTS | {"recompute": "selective", "config": MIXTRAL | {"num_local_experts": 6}},  # over 4 ranks
        CONTEXT,
        CONTEXT | {"recompute": "full"},
        CONTEXT | {"framework": "megatron", "zero_stage": 1},
    ],
)
def test_what_is_traced_is_not_refused(wanted):
    check(**wanted)


@pytest.mark.parametrize(
    "changes",
    [
        {"config": config()},  # no experts
        {"framework": "accelerate"},
        {"zero_stage": 1},
        {"shard_group": 2},
        {"expert_parallel": 3},
    ],
)
def test_other_expert_parallelism_is_refused(changes):
    with pytest.raises(NotYetAvailable):
        check(**(EXPERTS | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "fp32", "zero_stage": 0},
        {"tensor_parallel": 2},
        {"expert_parallel": 3},
        {"config": config(model_type="olmoe", num_experts=4, num_experts_per_tok=2)},
    ],
)
def test_other_experts_of_megatron_s_are_refused(changes):
    with pytest.raises(NotYetAvailable):
        check(**(GROUPED | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"framework": "accelerate", "zero_stage": 0},
        {"attention": "eager"},
        {"precision": "fp32"},
        {"recompute": "selective"},
        {"sequence_length": 30},  # 15 tokens have no halves
    ],
)
def test_other_context_parallelism_is_refused(changes):
    with pytest.raises(NotYetAvailable) as refusal:
        check(**(CONTEXT | changes))
    assert refusal.value.pointer == "/layout/context_parallel"


def test_adapters_of_experts_are_refused_and_those_of_attention_are_not():
    frozen = {"config": MIXTRAL, "method": "lora"}
    check(**frozen, lora=Lora(target_modules=("q_proj",)))
    with pytest.raises(NotYetAvailable, match="experts"):
        check(**frozen, lora=Lora(target_modules=("q_proj", "w1")))


@pytest.mark.parametrize(("framework", "stage", "chunks"), [("fsdp2", 3, 3), ("megatron", 1, 4)])
def test_as_many_chunks_as_stay_gathered_are_traced(framework, stage, chunks):
    check(framework=framework, zero_stage=stage, pipeline_parallel=2, virtual_pipeline=chunks)


def test_chunks_that_fsdp_gathers_anew_are_refused():
    with pytest.raises(NotYetAvailable, match="3 chunks") as refusal:
        check(framework="fsdp2", pipeline_parallel=2, virtual_pipeline=4)
    assert refusal.value.pointer == "/layout/virtual_pipeline"


def test_parts_of_megatron_s_layers_over_a_split_sequence_are_refused():
    split = {"framework": "megatron", "zero_stage": 1, "tensor_parallel": 2, "sequence_parallel": True}
    check(**split, recompute="selective")
    with pytest.raises(NotYetAvailable, match="split sequence"):
        check(**split, recompute="selective", recompute_modules=("layernorm",))


def test_latent_attention_is_refused_with_selective_recomputation():
    latent = {"framework": "fsdp2", "config": config(model_type="deepseek_v3")}
    check(**latent, recompute="full")
    with pytest.raises(NotYetAvailable, match="Latent") as refusal:
        check(**latent, recompute="selective")
    assert refusal.value.pointer == "/layout/recompute"
