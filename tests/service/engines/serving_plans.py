"""Serving plans to make launch files of."""

from __future__ import annotations

import dataclasses
from typing import Any

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.hardware import GpuCount, Hardware
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.answer import ServingPlan
from plimsoll.planners.serving.planning import plan_serving
from plimsoll.planners.serving.releases.cards import activations_format
from plimsoll.service.launch.checkpoint import Checkpoint
from plimsoll.service.launch.kubernetes import Placement

MODEL = "org/tiny"
PLAN_ID = "0123456789abcdef0123456789abcdef"
CHECKPOINT = Checkpoint(name=MODEL)


def hardware(gpu: str = "h100-sxm-80gb", gpus: int = 1, *, gpus_per_node: int = 8) -> Hardware:
    found = catalogue().gpu(gpu)
    return Hardware(gpu=found, gpus=GpuCount(minimum=gpus, maximum=gpus), gpus_per_node=gpus_per_node)


def placement(gpu: str = "h100-sxm-80gb") -> Placement:
    return Placement(plan_id=PLAN_ID, gpu=catalogue().gpu(gpu))


def serving_plan(*, layout: dict[str, int] | None = None, **settings: Any) -> ServingPlan:
    """Return a plan for a tiny model with some of its layout and its settings replaced."""
    from plimsoll.planners.families import describe_config
    from tests.api.questions import TINY_CONFIG

    spec = describe_config(TINY_CONFIG, name="tiny")
    plan = plan_serving(ServingQuestion(engine="vllm", model=spec, hardware=hardware(), max_model_len=1024)).plan
    degrees = {"tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 1, "attention_data_parallel": 1}
    asked = {**degrees, **(layout or {})}
    gpus = 1
    for degree in degrees:
        gpus *= asked[degree]
    set_anew = dataclasses.replace(plan.settings, **settings)
    activations = activations_format(set_anew.weights, set_anew.kv_cache, hardware().gpu)
    return dataclasses.replace(
        plan,
        layout=dataclasses.replace(plan.layout, **asked, gpus=gpus),
        settings=dataclasses.replace(set_anew, activations=activations),
    )
