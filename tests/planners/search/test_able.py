"""Which stacks can run a job, and what none of them has together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import ImpossibleLayout, InvalidQuestion
from plimsoll.planners.questions import Recompute
from plimsoll.planners.search.able import jobs_of, listed
from plimsoll.planners.stacks.profile import Profile, profiles_to_search
from plimsoll.planners.training.planning import plan_training, plan_without_advice
from tests.planners.factories import hardware, question


def refusal(**asked: Any) -> InvalidQuestion:
    with pytest.raises(InvalidQuestion) as raised:
        jobs_of(question(**asked))
    return raised.value


def able(can: Callable[[Profile], bool]) -> list[str]:
    """Return the stacks of which that holds, in the order in which they are searched."""
    return [profile.name for profile in profiles_to_search("any") if can(profile)]


def test_what_no_stack_combines_is_named_with_who_has_each():
    # Profiles: products in fp8 on megatron among others, Adafactor on ddp among others, and neither on deepspeed.
    error = refusal(optimizer="adafactor", precision="fp8-mixed")
    in_fp8, with_adafactor = (
        able(lambda profile: "fp8-mixed" in profile.states),
        able(lambda profile: "adafactor" in profile.can.optimizers),
    )
    assert error.detail.startswith(f"No stack combines precision fp8-mixed ({listed(in_fp8)})")
    assert error.detail.endswith(f"with optimizer adafactor ({listed(with_adafactor)}).")
    assert ("megatron" in in_fp8, "ddp" in with_adafactor, "deepspeed" in error.detail) == (True, True, False)


def test_a_stack_that_shards_nothing_has_no_shard_groups():
    # PyTorch's DistributedDataParallel keeps the whole state on every rank.
    error = refusal(framework="ddp", layout={"shard_group": 2})
    assert error.detail.startswith("ddp shards nothing; omit shard_group.")
    assert error.pointer == "/layout/shard_group"
    # A small job on any stack is planned on one of the others.
    assert "ddp" not in {job.profile.name for job in jobs_of(question(method="lora", layout={"shard_group": 2}))}


def test_a_fixed_choice_of_layout_is_combined_like_any_other():
    # Adapters beside pipeline stages: pipelines are Megatron's, torchtitan's and nanotron's, which train whole models.
    error = refusal(method="qlora", layout={"pipeline_parallel": 2})
    assert "pipeline_parallel 2 (fsdp2, megatron, nanotron, megatron-bridge and megatron-deepspeed)" in error.detail
    assert "method qlora (accelerate, litgpt and torchtune)" in error.detail
    assert "reference" in error.detail
    assert error.pointer == "/layout/pipeline_parallel"


@pytest.mark.parametrize(
    ("recompute", "words"),
    [
        (Recompute(mode="full", full_layers=4), "recompute of 4 layers (megatron and megatron-bridge)"),
        (Recompute(mode="full", every=2), "recompute of every 2nd layer (fsdp2 and torchtune)"),
        (
            Recompute(mode="selective", modules=("mlp", "layernorm")),
            "recompute of mlp, layernorm (megatron and megatron-bridge)",
        ),
    ],
)
def test_recomputation_is_named_as_it_was_asked(recompute: Recompute, words: str):
    assert words in refusal(optimizer="lion", recompute=recompute).detail


def test_a_named_stack_that_cannot_is_answered_with_those_that_can():
    error = refusal(framework="megatron", method="lora")
    assert error.pointer == "/training/method"
    others = able(lambda profile: "lora" in profile.can.methods and "bf16-mixed" in profile.states)
    assert {"accelerate", "litgpt"} <= set(others)
    assert f"The job can run on {listed(others)}." in error.detail


def test_a_stack_without_code_for_the_model_is_answered_with_those_that_have_it():
    name = "google-bert/bert-large-uncased"
    bert = describe_config(catalogue().model(name).config, name=name)
    error = refusal(framework="torchtune", model=bert, sequence_length=512)
    assert error.pointer == "/framework"
    others = able(lambda profile: "encoder" not in profile.models.lacks and "bf16-mixed" in profile.states)
    assert {"accelerate", "megatron"} <= set(others)
    assert error.detail == (
        f"torchtune has no code for bidirectional encoders, which {name} needs. The job can run on {listed(others)}."
    )
    assert "torchtune" not in [job.profile.name for job in jobs_of(question(model=bert, sequence_length=512))]


def test_where_no_measured_stack_can_run_a_job_the_summary_says_what_they_lack():
    # Muon runs in fp16 on ddp and deepspeed; megatron's does not.
    answer = plan_training(question(optimizer="muon", precision="fp16-mixed"))
    assert "No measured stack combines optimizer muon (megatron) with precision fp16-mixed (" in answer.summary
    assert not any("room" in said for said in answer.assumptions)


def test_where_measured_stacks_can_run_a_job_and_have_no_room_that_is_said():
    answer = plan_training(question(gpus=1, sequence_length=2**20, global_batch_size=1))
    assert any(
        "No measured stack that can run this job has a layout with room on the GPUs." in said
        for said in answer.assumptions
    )


def test_where_the_best_layout_of_measured_stacks_is_on_the_host_nobody_says_that_none_has_room_without():
    # On 8 H100 megatron holds it without the host, and is slower than what keeps the optimizer there.
    name = "Qwen/Qwen3-30B-A3B"
    model = describe_config(catalogue().model(name).config, name=name)
    answer = plan_training(question(model=model, gpus=8, sequence_length=12288, global_batch_size=64))
    said = " ".join(answer.assumptions)
    assert "keeps states in host memory" in said
    assert "has a layout with room" not in said
    assert any(advice.reason.startswith("It fits without host memory too.") for advice in answer.advice)


def test_weights_in_fp8_alone_are_asked_for_of_stacks_that_have_them():
    error = refusal(framework="fsdp2", precision="fp8-mixed", low_precision_weights=True)
    held = "fsdp2 holds weights in 16 bits or more beside those that fp8-mixed multiplies"
    assert f"{held}; megatron and megatron-bridge can" in error.detail
    assert error.pointer == "/training/low_precision_weights"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "needs precision fp8-mixed, mxfp8-mixed, fp8-block-mixed or nvfp4-mixed, not bf16-mixed."),
        (
            {"precision": "fp8-mixed", "method": "qlora"},
            "is not planned with method qlora, which packs weights in four bits.",
        ),
    ],
)
def test_weights_in_fp8_alone_are_asked_for_in_fp8_and_where_all_learn(asked: dict[str, Any], words: str):
    with pytest.raises(InvalidQuestion) as raised:
        plan_without_advice(question(framework="megatron-bridge", low_precision_weights=True, **asked))
    assert raised.value.detail == f"low_precision_weights true {words}"


def test_names_are_listed_as_sentences_list_them():
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_stacks_are_named_only_where_they_have_a_layout_of_the_job():
    # 96 sequences are no whole micro-batches for 64 replicas, all that ddp, atorch and their like make of 64 GPUs;
    # torchtitan's ranks can divide matrices or sequences instead.
    error = refusal(framework="megatron", precision="tf32", gpus=64, global_batch_size=96)
    assert error.detail.endswith("The job can run on fsdp2.")
    found = plan_without_advice(question(framework="fsdp2", precision="tf32", gpus=64, global_batch_size=96))
    assert found.plan.layout.data_parallel in (1, 2, 4, 8, 16, 32)


def test_stacks_that_are_able_but_have_no_such_layout_are_said_to_have_none():
    error = refusal(framework="megatron", optimizer="lion", gpus=64, global_batch_size=96)
    assert "The job can run" not in error.detail
    assert error.detail.endswith("ddp and deepspeed can, but not in any layout of this request.")
    with pytest.raises(ImpossibleLayout):
        plan_without_advice(question(framework="deepspeed", optimizer="lion", gpus=64, global_batch_size=96))


V100 = hardware(8, gpu=catalogue().gpu("v100-sxm-32gb"))


@pytest.mark.parametrize(
    ("framework", "instead"),
    [
        # TransformerEngine, pytorch/attention/dot_product_attention/utils.py: neither "for compute capability < sm80".
        ("megatron", "attention must be eager"),
        ("megatron-deepspeed", "attention must be eager"),
    ],
)
def test_flash_attention_is_refused_on_cards_that_a_stack_has_no_such_kernel_for(framework: str, instead: str):
    error = refusal(framework=framework, hardware=V100, precision="fp16-mixed")
    assert error.pointer == "/training/attention"
    assert f"on NVIDIA V100 SXM2 32 GB, which has no bf16 (compute capability below 8.0): {instead}." in error.detail
    assert jobs_of(question(framework=framework, hardware=V100, precision="fp16-mixed", attention="eager"))
    assert jobs_of(question(framework=framework, precision="fp16-mixed"))


def test_torch_keeps_no_scores_on_such_cards_by_its_memory_efficient_kernel():
    asked = question(framework="accelerate", hardware=V100, precision="fp16-mixed")
    assumed = " ".join(plan_without_advice(asked).assumptions)
    assert "Attention runs on torch's memory-efficient kernels" in assumed
    assert "Attention runs on flash kernels." in plan_without_advice(question(framework="accelerate")).assumptions


def test_nanotron_computes_attention_by_the_flash_kernels_of_a_package_alone():
    # nanotron 2411b02, src/nanotron/models/llama.py imports flash_attn.
    llama_2 = catalogue().model("meta-llama/Llama-2-7b-hf")
    asked = {"framework": "nanotron", "model": describe_config(llama_2.config, name=llama_2.id)}
    said = refusal(**asked, attention="eager").detail
    assert said.startswith("nanotron has no eager attention: attention must be flash.")


def test_a_way_to_divide_a_pipeline_is_told_as_it_was_asked_for():
    error = refusal(optimizer="lion", layout={"pipeline_layout": "first-less=1,last-less=1"})
    assert error.detail.startswith("No stack combines pipeline_layout first-less=1,last-less=1 (fsdp2) with")
