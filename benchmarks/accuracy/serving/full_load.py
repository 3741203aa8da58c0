"""Published throughput at full load, of models and an engine's release that no fit saw, beside the planner's answer."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy.serving.latencies import LATENCIES
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.hardware import GpuCount, Hardware
from plimsoll.planners.questions import ServingLayoutRequest, ServingQuestion
from plimsoll.planners.serving.planning import plan_serving

# NVIDIA's tables of TensorRT-LLM 0.17: as many requests as run at once, all there from the start.
RELEASE = "0.17"
GPUS = {
    "A100-SXM4-80GB": "a100-sxm-80gb",
    "H100 80GB": "h100-sxm-80gb",
    "H200 141GB": "h200-sxm-141gb",
    "L40S": "l40s-48gb",
}
MODELS = {"LLaMA v3.1 70B": "meta-llama/Llama-3.1-70B", "Mixtral 8x7B": "mistralai/Mixtral-8x7B-v0.1"}
FORMATS = {"FP8": "fp8", "FP16": "fp16"}
GPUS_PER_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FullLoad:
    """One row: output tokens per second as measured and as planned."""

    model: str
    gpu: str
    measured: float
    planned: float


def full_loads() -> tuple[FullLoad, ...]:
    """Return every row of the release, as a plan of as many requests as run at once."""
    with LATENCIES.open(encoding="utf-8", newline="") as file:
        return tuple(_row(row) for row in csv.DictReader(file) if row["version"] == RELEASE)


def full_load_lines(rows: tuple[FullLoad, ...]) -> Iterator[str]:
    """Yield the error by model and card."""
    yield f"{'model':16} {'card':16} {'rows':>5} {'error':>18} {'planned/measured':>18}"
    for model, gpu in sorted({(row.model, row.gpu) for row in rows}):
        yield _line(model, gpu, [row for row in rows if (row.model, row.gpu) == (model, gpu)])
    yield _line("all", "all", rows)


def _line(model: str, gpu: str, rows: tuple[FullLoad, ...] | list[FullLoad]) -> str:
    ratios = np.array([row.planned / row.measured for row in rows])
    errors = np.abs(ratios - 1)
    error = f"{errors.mean():8.1%} ({np.median(errors):6.1%})"
    return f"{model:16} {gpu:16} {len(rows):5} {error} {np.median(ratios):18.2f}"


def _row(row: Mapping[str, str]) -> FullLoad:
    found = catalogue().model(MODELS[row["model"]])
    gpus, weights = int(row["gpus"]), FORMATS[row["precision"]]
    tokens_in, tokens_out = int(row["isl"]), int(row["osl"])
    question = ServingQuestion(
        model=describe_config(found.config, name=found.id),
        hardware=Hardware(
            gpu=catalogue().gpu(GPUS[row["gpu"]]),
            gpus=GpuCount(minimum=gpus, maximum=gpus),
            gpus_per_node=GPUS_PER_NODE,
        ),
        weights=weights,
        kv_cache=weights,
        engine="tensorrt-llm",
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        max_model_len=tokens_in + tokens_out,
        layout=ServingLayoutRequest(
            tensor_parallel=int(row["tp"]),
            pipeline_parallel=int(row["pp"] or 1),
            data_parallel=1,
            attention_data_parallel=1,
            expert_parallel=1,
        ),
    )
    performance = plan_serving(question).plan.performance
    planned = 0.0 if performance is None else performance.output_tokens_per_second
    return FullLoad(model=row["model"], gpu=row["gpu"], measured=float(row["output_tok_s_total"]), planned=planned)
