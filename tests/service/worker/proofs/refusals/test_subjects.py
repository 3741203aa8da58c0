import pytest

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.planners.questions import Lora
from plimsoll.service.worker.proofs.refusals.every import refuse
from tests.service.worker.cases import LATENT, asked, config

MIXTRAL = config(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2)
EXPERTS = {"framework": "fsdp2", "config": MIXTRAL, "expert_parallel": 2}
GROUPED = EXPERTS | {"framework": "megatron", "zero_stage": 1}
CONTEXT = {"framework": "fsdp2", "context_parallel": 2}


def check(**changes):
    refuse(asked(**changes), on_device=False)


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


def test_parts_of_megatron_s_layers_over_a_split_sequence_are_refused_where_a_stand_in_runs():
    split = {"framework": "megatron", "zero_stage": 1, "tensor_parallel": 2, "sequence_parallel": True}
    check(**split, recompute="selective", recompute_modules=("layernorm",))
    with pytest.raises(NotYetAvailable, match="split sequence"):
        check(**split, config=config(attention_bias=True), recompute="selective", recompute_modules=("layernorm",))


SPLIT = {"config": LATENT, "framework": "fsdp2", "tensor_parallel": 2, "sequence_parallel": True}


def test_latent_attention_is_traced_with_selective_recomputation_and_as_torchtitan_splits_it():
    check(**SPLIT, recompute="selective")


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"sequence_parallel": False}, "/layout/tensor_parallel"),
        ({"framework": "accelerate"}, "/layout/tensor_parallel"),
        ({"context_parallel": 2}, "/layout/tensor_parallel"),
        ({"expert_parallel": 2}, "/layout/expert_parallel"),
        ({"framework": "megatron", "zero_stage": 1, "context_parallel": 2}, "/layout/framework"),
        ({"framework": "megatron", "zero_stage": 1, "attention": "eager"}, "/layout/framework"),
    ],
)
def test_latent_attention_that_no_stand_in_runs_is_refused(changes, pointer):
    with pytest.raises(NotYetAvailable) as refusal:
        check(**SPLIT | changes)
    assert refusal.value.pointer == pointer


@pytest.mark.parametrize("modules", [("mla_up_proj",), ("shared_experts", "moe_act"), ("moe", "layernorm", "mlp")])
def test_megatron_core_traces_parts_of_latent_attention_and_of_mixtures_with_shared_experts(modules):
    experts = {"framework": "megatron", "zero_stage": 1, "expert_parallel": 2, "data_parallel": 2}
    check(**SPLIT | experts, recompute="selective", recompute_modules=modules)


def test_megatron_core_traces_a_family_whose_code_is_not_transformers():
    kimi = LATENT | {"model_type": "kimi_k2"}
    check(framework="megatron", zero_stage=1, config=kimi)
    with pytest.raises(NotYetAvailable, match="its code lies beside its weights"):
        check(config=kimi)


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"config": config(model_type="gpt_neox"), "pipeline_parallel": 2}, "/layout/pipeline_parallel"),
        ({"config": config(model_type="gpt_neox"), **CONTEXT}, "/layout/context_parallel"),
        ({"config": config(model_type="gpt2"), "method": "qlora"}, "/training/method"),
        ({"config": MIXTRAL, "framework": "ddp", "zero_stage": 0}, "/layout/zero_stage"),
    ],
)
def test_what_is_not_traced_of_a_family_is_refused(changes, pointer):
    with pytest.raises(NotYetAvailable) as refusal:
        check(**changes)
    assert refusal.value.pointer == pointer


@pytest.mark.parametrize(
    "changes",
    [
        {"config": config(model_type="gpt_neox")},
        {"config": config(model_type="gpt2"), "method": "lora"},
        {"config": MIXTRAL | {"model_type": "gpt_oss"}, "framework": "fsdp2"},
        EXPERTS | {"config": MIXTRAL | {"model_type": "gpt_oss"}},
        {"config": MIXTRAL, "framework": "ddp", "zero_stage": 0, "precision": "bf16"},
    ],
)
def test_what_is_traced_of_a_family_is_not_refused(changes):
    check(**changes)


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"framework": "megatron", "zero_stage": 2}, "/layout/zero_stage"),
        ({"framework": "megatron", "zero_stage": 3}, "/layout/zero_stage"),
        ({"framework": "accelerate", "zero_stage": 1}, "/layout/zero_stage"),
        ({"framework": "fsdp2", "tensor_parallel": 2, "fused_cross_entropy": True}, "/layout/fused_cross_entropy"),
        ({"framework": "accelerate", "tensor_parallel": 2, "fused_cross_entropy": True}, "/layout/fused_cross_entropy"),
    ],
)
def test_a_sharding_that_is_not_traced_of_a_stack_is_refused_by_name(changes, pointer):
    with pytest.raises(NotYetAvailable) as refusal:
        check(**changes)
    assert refusal.value.pointer == pointer


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"framework": "fsdp2", "method": "lora"}, "not traced yet"),
        ({"tensor_parallel": 2, "method": "qlora"}, "use lora, or tensor_parallel 1"),
        ({"framework": "reference", "zero_stage": 0, "tensor_parallel": 2, "method": "qlora"}, "bitsandbytes"),
    ],
)
def test_adapters_are_refused_where_they_are_not_traced(changes, reason):
    with pytest.raises(NotYetAvailable, match=reason):
        check(**changes)


@pytest.mark.parametrize(
    "changes", [{"framework": "fsdp2", "tensor_parallel": 2}, {"framework": "megatron", "zero_stage": 1}]
)
def test_families_with_other_matrices_are_refused_where_llama_s_names_matter(changes):
    with pytest.raises(NotYetAvailable, match="phi3"):
        check(**changes, config=config(model_type="phi3"))
