"""Measured latencies, with the roofline's terms of the same deployment."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planners.architecture import ModelSpec
from planners.catalogue import catalogue
from planners.errors import PlimsollError
from planners.hardware import GpuCount, Hardware
from planners.huggingface import describe_config
from planners.questions import ServingQuestion
from planners.serving.degrees import Degrees, has_experts
from planners.serving.latency import ReplicaWork, replica_work
from planners.serving.settings import resolve_settings
from planners.serving.traffic import Traffic
from planners.serving.weights import replica_stages

LATENCIES = Path(__file__).parents[2] / "data" / "serving_latency.csv"
GPUS = {
    "h100_sxm": "h100-sxm-80gb",
    "h200_sxm": "h200-sxm-141gb",
    "H200": "h200-sxm-141gb",
    "b200_sxm": "b200-sxm-180gb",
    "b300_sxm": "b300-sxm-270gb",
}
ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
MODELS = {"zhipuai/GLM-5": "zai-org/GLM-5"}
FORMATS = {"fp8": "fp8", "fp4": "nvfp4", "bf16": "bf16", "int4": "int4", "": "bf16"}
# Beyond a node of 8 the rows do not say what links the cards.
MOST_GPUS = 8
MILLISECONDS = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyCase:
    """One measurement; `family` groups the sizes and versions of one model that are left out together."""

    engine: str
    family: str
    gpu: str
    work: ReplicaWork
    batch: float
    traffic: Traffic
    token_seconds: float
    first_token_seconds: float | None


def latency_cases() -> tuple[tuple[LatencyCase, ...], Counter[str]]:
    """Return the aggregated rows whose layout is whole, and how many others there are, by reason."""
    cases: list[LatencyCase] = []
    left_out: Counter[str] = Counter()
    with LATENCIES.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            reason = _reason_to_leave(row)
            if reason is None:
                try:
                    cases.append(_case(row))
                except PlimsollError as refused:
                    reason = f"refused: {refused}"
            if reason is not None:
                left_out[reason] += 1
    return tuple(cases), left_out


def _reason_to_leave(row: Mapping[str, str]) -> str | None:
    if row["mode"] != "agg" or row["engine"] not in ENGINES or not row["tpot_ms"]:
        return "throughput only, or another mode"
    if row["gpu"] not in GPUS or int(row["gpus"]) > MOST_GPUS:
        return "more than a node, or a rack's card"
    degrees = [int(row[name] or 1) for name in ("tp", "pp", "attn_dp")]
    if degrees[0] * degrees[1] * degrees[2] != int(row["gpus"]):
        return "degrees do not multiply to the GPUs"
    expert_ranks = int(row["moe_tp"] or 0) * int(row["moe_ep"] or 0)
    if expert_ranks > 1 and expert_ranks != degrees[0] * degrees[2]:
        return "experts are divided over other ranks than the layers"
    return None


def _case(row: Mapping[str, str]) -> LatencyCase:
    spec = _model(row["model"])
    gpus = int(row["gpus"])
    attention = int(row["attn_dp"] or 1)
    degrees = Degrees(
        tensor_parallel=int(row["tp"] or 1),
        pipeline_parallel=int(row["pp"] or 1),
        attention_data_parallel=attention,
        expert_parallel=int(row["moe_ep"] or 1) if has_experts(spec) else 1,
    )
    hardware = Hardware(
        gpu=catalogue().gpu(GPUS[row["gpu"]]), gpus=GpuCount(minimum=gpus, maximum=gpus), gpus_per_node=MOST_GPUS
    )
    sequence = int(row["isl"]) + int(row["osl"])
    question = ServingQuestion(
        model=spec, hardware=hardware, weights=_weights(row), engine=ENGINES[row["engine"]], max_model_len=sequence
    )
    settings = resolve_settings(question)
    work = replica_work(spec, settings, hardware, replica_stages(spec, settings.weights, degrees), degrees)
    per_rank = "per attention-DP rank" in row["note"]
    return LatencyCase(
        engine=row["engine"],
        family=_family(row["model"]),
        gpu=row["gpu"],
        work=work,
        batch=float(row["concurrency_or_batch"]) * (attention if per_rank else 1),
        traffic=Traffic(input_tokens=int(row["isl"]), output_tokens=int(row["osl"])),
        token_seconds=float(row["tpot_ms"]) / MILLISECONDS,
        first_token_seconds=float(row["ttft_ms"]) / MILLISECONDS if row["ttft_ms"] else None,
    )


def _model(name: str) -> ModelSpec:
    found = catalogue().model(MODELS.get(name, name))
    return describe_config(found.config, name=found.id)


def _weights(row: Mapping[str, str]) -> str:
    if "gpt-oss" in row["model"]:
        return "mxfp4"
    is_fp8 = not row["precision"] and ("FP8" in row["model"] or "DeepSeek" in row["model"])
    return "fp8" if is_fp8 else FORMATS[row["precision"]]


def _family(name: str) -> str:
    short = name.split("/")[-1]
    for suffix in ("-Instruct", "-FP8", "-NVFP4"):
        short = short.replace(suffix, "")
    # R1 and V3.1 have V3's shapes.
    return "DeepSeek-V3" if short.startswith("DeepSeek") else short
