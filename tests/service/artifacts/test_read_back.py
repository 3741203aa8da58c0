"""Commands of serving plans, read back by the admission check: what is launched is what was planned."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

import pytest
import yaml

from plimsoll.planners.serving.answer import ServingPlan
from plimsoll.service.artifacts.serving import serving_artifacts
from plimsoll.service.engines.commands import SERVING_FIELDS
from plimsoll.service.engines.engine import serving_launch
from plimsoll.service.workloads.commands.launches import Launch
from plimsoll.service.workloads.commands.shell import programs
from plimsoll.service.workloads.objects.config_maps import GivenConfigMaps, with_config_maps
from plimsoll.service.workloads.objects.workloads import pod_group
from tests.service.admission.reviews import a_plain_container
from tests.service.engines.serving_plans import CHECKPOINT, MODEL, hardware, placement, serving_plan

CASES = [
    pytest.param("vllm", {"engine": "vllm"}, {"tensor_parallel": 2, "pipeline_parallel": 2}, id="vllm"),
    pytest.param(
        "vllm", {"engine": "vllm"}, {"tensor_parallel": 2, "attention_data_parallel": 2, "expert_parallel": 4},
        id="vllm-experts",
    ),
    pytest.param("vllm", {"engine": "vllm", "kv_cache": "fp8"}, {"tensor_parallel": 4}, id="vllm-fp8-cache"),
    pytest.param(
        "sglang", {"engine": "sglang", "engine_version": "0.5", "kv_cache": "fp8"},
        {"tensor_parallel": 2, "attention_data_parallel": 4, "expert_parallel": 8}, id="sglang",
    ),
    pytest.param(
        "trtllm-serve", {"engine": "tensorrt-llm", "engine_version": "1.2", "kv_cache": "fp8", "block_size": 64},
        {"attention_data_parallel": 4}, id="trtllm-attention",
    ),
    pytest.param(
        "trtllm-serve", {"engine": "tensorrt-llm", "engine_version": "1.2"},
        {"tensor_parallel": 2, "pipeline_parallel": 2}, id="trtllm",
    ),
]  # fmt: skip
# The planner's names for what a command leaves to its defaults.
ONE = {"attention_data_parallel": 1, "expert_parallel": 1, "data_parallel": 1, "decode_context_parallel": 1}


def made(settings: dict[str, Any], layout: dict[str, int]) -> tuple[ServingPlan, dict[str, Any]]:
    plan = serving_plan(layout=layout, **settings)
    return plan, serving_artifacts(CHECKPOINT, plan, hardware(), placement(), fits=True).files


def is_planned(launch: Any, plan: ServingPlan) -> bool:
    assert isinstance(launch, Launch)
    request, settings, layout = launch.request, dataclasses.asdict(plan.settings), dataclasses.asdict(plan.layout)
    assert (request["model"], launch.notes) == (MODEL, ())
    for field in ("tensor_parallel", "pipeline_parallel", *ONE):
        assert {**ONE, **request["layout"]}[field] == layout[field], field
    for field in SERVING_FIELDS:
        assert request["serving"].get(field) == settings[field], field
    return bool(request["serving"].get("kv_cache", "bf16") == settings["kv_cache"])


@pytest.mark.parametrize(("program", "settings", "layout"), CASES)
def test_a_command_is_read_back_as_its_plan(program: str, settings: dict[str, Any], layout: dict[str, int]):
    plan, artifacts = made({"block_size": 32, "is_block_size_fixed": True, **settings}, layout)
    files = {f"/work/{name}": text for name, text in artifacts.items() if name.endswith(".yaml")}
    container = a_plain_container(files=files, definition={"workingDir": "/work"})
    words = tuple(shlex.split(artifacts[program]))
    assert is_planned(serving_launch(words, container, gpus=plan.layout.gpus), plan)


@pytest.mark.parametrize(("program", "settings", "layout"), CASES)
async def test_a_manifest_is_read_back_with_its_config_map(program: str, settings: Any, layout: dict[str, int]):
    plan, artifacts = made({"block_size": 32, "is_block_size_fixed": True, **settings}, layout)
    *config_maps, deployment = yaml.safe_load_all(artifacts["deployment"])
    given = {("default", document["metadata"]["name"]): document["data"] for document in config_maps}
    group = pod_group("apps", "Deployment", deployment)
    assert group is not None
    (container,) = (await with_config_maps(group, "default", GivenConfigMaps(given))).containers
    (program,) = programs(container)
    assert is_planned(serving_launch(program.words, container, gpus=plan.layout.gpus), plan)


def test_tgis_command_is_read_back_as_its_plan():
    plan, artifacts = made({"engine": "transformers", "weights": "nf4"}, {"tensor_parallel": 2})
    words = tuple(shlex.split(artifacts["text-generation-inference"]))
    launch = serving_launch(words, a_plain_container(), gpus=8)
    assert isinstance(launch, Launch)
    assert (launch.request["model"], launch.request["layout"]["tensor_parallel"]) == (MODEL, 2)
    assert launch.request["serving"] == {
        "engine": "transformers", "weights": "nf4", "max_model_len": plan.settings.max_model_len,
        "max_num_batched_tokens": plan.settings.max_num_batched_tokens,
    }  # fmt: skip
