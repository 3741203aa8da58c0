"""Laws of step time that hold for every model, card and layout."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.planners.ground.hardware import GpuCount, Hardware
from plimsoll.planners.questions import LayoutRequest, Recompute, TrainingQuestion
from plimsoll.planners.training.planning import plan_without_advice
from tests.properties.laws import law

MODELS = ("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "google/gemma-2-2b", "openai-community/gpt2-xl")
STACKS = ("accelerate", "composer", "deepspeed", "fsdp2", "megatron", "nanotron", "torchtune")
# So much more memory than a card has that no plan on it is nearly full.
ROOM_BYTES = 10 * 2**40


def asked(model: str, framework: str, gpus: int, per_gpu: int, zero: int) -> TrainingQuestion:
    """A question with one layout: plain data parallelism."""
    entry, card = catalogue().model(model), catalogue().gpu("h100-sxm-80gb")
    return TrainingQuestion(
        model=describe_config(entry.config, name=entry.id),
        hardware=Hardware(gpu=card, gpus=GpuCount(minimum=gpus, maximum=gpus), gpus_per_node=8),
        framework=framework,
        sequence_length=1024,
        global_batch_size=gpus * per_gpu,
        micro_batch_size=per_gpu,
        recompute=Recompute(mode="none"),
        activation_offload=False,
        fused_cross_entropy=False,
        layout=LayoutRequest(
            data_parallel=gpus,
            tensor_parallel=1,
            pipeline_parallel=1,
            expert_parallel=1,
            zero_stage=zero,
            shard_group=gpus,
            offload="none",
        ),
    )


@given(
    model=st.sampled_from(MODELS),
    framework=st.sampled_from(STACKS),
    gpus=st.sampled_from([1, 2, 8, 24, 64]),
    per_gpu=st.sampled_from([1, 2, 3, 5]),
    zero=st.sampled_from([0, 1, 2, 3]),
    fullness=st.floats(min_value=0.8, max_value=1.0),
)
@law(few=15, many=400)
def test_a_nearly_full_card_takes_as_long_as_one_with_room(model, framework, gpus, per_gpu, zero, fullness):
    question = asked(model, framework, gpus, per_gpu, zero)
    roomy = dataclasses.replace(question.hardware.gpu, memory_bytes=ROOM_BYTES)
    try:
        plan = plan_without_advice(
            dataclasses.replace(question, hardware=dataclasses.replace(question.hardware, gpu=roomy))
        ).plan
    except PlimsollError:
        assume(False)
    full = dataclasses.replace(question.hardware.gpu, memory_bytes=int(plan.memory.peak_bytes / fullness) + 1)
    nearly = plan_without_advice(
        dataclasses.replace(question, hardware=dataclasses.replace(question.hardware, gpu=full))
    ).plan
    assert nearly.step.seconds == pytest.approx(plan.step.seconds)


@given(
    model=st.sampled_from(MODELS),
    framework=st.sampled_from(["accelerate", "ddp", "fsdp2", "megatron"]),
    gpus=st.sampled_from([1, 8, 24]),
    per_gpu=st.sampled_from([1, 3, 4]),
    recompute=st.sampled_from(["none", "full"]),
)
@law(few=15, many=400)
def test_kernels_that_fuse_more_are_never_slower(model, framework, gpus, per_gpu, recompute):
    question = asked(model, framework, gpus, per_gpu, 3 if framework in ("accelerate", "fsdp2") else 0)
    question = dataclasses.replace(question, recompute=Recompute(mode=recompute))
    seconds = {}
    for kernels in (None, "eager", "foak", "fused", "compiled"):
        try:
            plan = plan_without_advice(dataclasses.replace(question, kernels=kernels)).plan
        except PlimsollError:
            continue
        seconds[kernels] = plan.step.seconds
    slowest = seconds.get("eager", seconds.get(None))
    assume(slowest is not None)
    assert all(taken <= slowest * (1 + 1e-12) for taken in seconds.values())
    if {"foak", "fused"} <= seconds.keys():
        assert seconds["fused"] <= seconds["foak"] * (1 + 1e-12)
    has_fused_norms = model != "openai-community/gpt2-xl"
    if has_fused_norms and {"eager", "fused"} <= seconds.keys():
        assert seconds["fused"] < seconds["eager"]
