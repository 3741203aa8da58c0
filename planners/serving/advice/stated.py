"""A changed serving question in the fields of a request: said in the one that was asked, they make it that question."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Any

from plimsoll.planners.ground.hardware import GpuCount
from plimsoll.planners.questions import AllowedChoices, ServiceLevel, ServingLayoutRequest, ServingQuestion
from plimsoll.planners.serving.search.candidates import Candidate
from plimsoll.planners.serving.times.disaggregation import DisaggregatedDeployment

# What advice changes of the deployment.
SETTINGS = (
    "weights",
    "kv_cache",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "gpu_memory_utilization",
    "concurrency",
    "requests_per_second",
    "burst_seconds",
)
# Formats of a cache that follow from the weights where a request omits them.
FOLLOWING = ("fp16", "fp32")


def stated_change(asked: ServingQuestion, changed: ServingQuestion) -> dict[str, Any]:
    """Return what tells a question without choices from the one that was asked, by the fields of a request."""
    allowed = asked.allowed or AllowedChoices()
    stated: dict[str, Any] = {}
    if changed.hardware.gpus != asked.hardware.gpus:
        stated["hardware.gpus"] = changed.hardware.gpus.maximum
    for name in SETTINGS:
        is_left = bool(getattr(allowed, name, ()))
        follows = name == "kv_cache" and changed.kv_cache in FOLLOWING and changed.weights != asked.weights
        if getattr(changed, name) != getattr(asked, name) or is_left or follows:
            stated[f"serving.{name}"] = getattr(changed, name)
    level, before = changed.slo or ServiceLevel(), asked.slo or ServiceLevel()
    stated |= _differing("serving.slo", before, level)
    stated |= _differing("layout", asked.layout, changed.layout)
    if changed.disaggregated is not None and changed.disaggregated != asked.disaggregated:
        stated["serving.disaggregated"] = asdict(changed.disaggregated)
    return stated


def _differing(part: str, before: Any, after: Any) -> dict[str, Any]:
    return {
        f"{part}.{field.name}": getattr(after, field.name)
        for field in fields(after)
        if getattr(after, field.name) != getattr(before, field.name)
    }


def as_found(question: ServingQuestion, found: Candidate) -> ServingQuestion:
    """Return the question with the GPUs, the degrees and the pools that a search found for it."""
    degrees, asked = found.replica.degrees, question.layout

    def of_some(degree: int, fixed: int | None) -> int | None:
        return degree if degree > 1 or fixed is not None else None

    layout = ServingLayoutRequest(
        tensor_parallel=degrees.tensor_parallel,
        pipeline_parallel=degrees.pipeline_parallel,
        data_parallel=found.replicas,
        attention_data_parallel=of_some(degrees.attention_data_parallel, asked.attention_data_parallel),
        expert_parallel=of_some(degrees.expert_parallel, asked.expert_parallel),
        decode_context_parallel=of_some(degrees.decode_context_parallel, asked.decode_context_parallel),
    )
    disaggregated = question.disaggregated
    if disaggregated is not None and isinstance(found.deployment, DisaggregatedDeployment):
        prefill = found.deployment.prefill_replicas * found.replica.gpus
        disaggregated = replace(disaggregated, prefill_gpus=prefill, decode_gpus=found.gpus - prefill)
    return replace(on_gpus(question, found.gpus), layout=layout, disaggregated=disaggregated)


def on_gpus(question: ServingQuestion, least: int, most: int | None = None) -> ServingQuestion:
    """Return the question on so many GPUs; of a range, the fewest that will do."""
    count = GpuCount(minimum=least, maximum=most or least, is_free=most is not None)
    return replace(question, hardware=replace(question.hardware, gpus=count))
