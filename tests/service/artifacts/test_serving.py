"""Launch files of serving plans: every setting of the plan, and none where a program lacks the option."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

import pytest

from planners.catalogue import catalogue
from planners.hardware import GpuCount, Hardware
from planners.inference import plan_serving
from planners.questions import ServingQuestion
from planners.serving.answer import ServingPlan
from service.artifacts.serving import serving_artifacts


def hardware() -> Hardware:
    gpu = catalogue().gpu("h100-sxm-80gb")
    return Hardware(gpu=gpu, gpus=GpuCount(minimum=1, maximum=1), gpus_per_node=8)


def serving_plan() -> ServingPlan:
    from planners.huggingface import describe_config
    from tests.api.questions import TINY_CONFIG

    spec = describe_config(TINY_CONFIG, name="tiny")
    return plan_serving(ServingQuestion(model=spec, hardware=hardware(), max_model_len=1024)).plan


def test_vllm_is_given_every_setting_of_the_plan():
    plan = serving_plan()
    words = shlex.split(serving_artifacts("org/name", plan)["vllm"])
    assert words[:5] == ["vllm", "serve", "org/name", "--dtype", "bfloat16"]
    options = dict(zip(words[5::2], words[6::2], strict=True))
    assert options == {
        "--max-model-len": "1024",
        "--gpu-memory-utilization": str(plan.settings.gpu_memory_utilization),
        "--block-size": str(plan.settings.block_size),
        "--max-num-batched-tokens": str(plan.settings.max_num_batched_tokens),
        "--max-num-seqs": str(plan.settings.max_num_seqs),
    }


def sglang_plan(**changes: Any) -> ServingPlan:
    plan = serving_plan()
    return dataclasses.replace(plan, settings=dataclasses.replace(plan.settings, engine="sglang", **changes))


def test_sglang_counts_attention_ranks_among_its_tensor_ranks():
    plan = sglang_plan(kv_cache="fp8")
    layout = dataclasses.replace(plan.layout, tensor_parallel=2, attention_data_parallel=4, expert_parallel=8)
    command = serving_artifacts("org/name", dataclasses.replace(plan, layout=layout))["sglang"]
    assert command.startswith("python -m sglang.launch_server --model-path org/name --dtype bfloat16 ")
    assert "--kv-cache-dtype fp8_e4m3 --tp-size 8 --dp-size 4 --ep-size 8 --enable-dp-attention" in command
    assert f"--mem-fraction-static {plan.settings.gpu_memory_utilization}" in command


def test_tensorrt_llm_is_given_what_it_has_an_option_for():
    plan = serving_plan()
    other = dataclasses.replace(plan, settings=dataclasses.replace(plan.settings, engine="tensorrt-llm"))
    command = serving_artifacts("org/name", other)["trtllm-serve"]
    assert command.startswith("trtllm-serve org/name --backend pytorch --max_seq_len 1024 ")
    attention = dataclasses.replace(other, layout=dataclasses.replace(other.layout, attention_data_parallel=2))
    assert serving_artifacts("org/name", attention) == {}


@pytest.mark.parametrize(
    "change",
    [
        {"weights": "int4"},
        {"kv_cache": "int8"},
        {"engine": "transformers"},
        {"engine": "sglang", "weights": "int4"},
        {"engine": "tensorrt-llm", "weights": "fp8"},
    ],
)
def test_what_a_program_has_no_option_for_has_no_command(change: dict[str, str]):
    plan = serving_plan()
    other = dataclasses.replace(plan, settings=dataclasses.replace(plan.settings, **change))
    assert serving_artifacts("org/name", other) == {}
