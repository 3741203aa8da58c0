"""Start-up logs of vLLM, asked about through the planner's own front door."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.planners.ground.hardware import GpuCount, Hardware
from plimsoll.planners.questions import ServingLayoutRequest, ServingQuestion
from plimsoll.planners.serving.answer import ServingPlan
from plimsoll.planners.serving.planning import plan_serving

LOGS = Path(__file__).parents[2] / "data" / "vllm_startup_logs.csv"
GIB = 2**30
GPUS = {"H100-80GB": "h100-sxm-80gb", "A100-80GB": "a100-sxm-80gb"}
# What a log names by its own word; the catalogue's stored formats go first.
DTYPES = {"": "bf16", "bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
WEIGHTS = {"fp8": "fp8", "mxfp4": "mxfp4", "gptq_marlin": "int4"}
# Only a distribution's shape of traffic; what is held in tokens does not depend on it.
TRAFFIC_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCase:
    """One log: what was printed, and the plan of the same start."""

    row: str
    model: str
    version: str
    printed: Mapping[str, str]
    plan: ServingPlan

    def errors(self) -> dict[str, float]:
        """Return planned over printed less one, for each figure the log printed."""
        stage, kv = self.plan.memory.stages[0], self.plan.kv
        planned = {
            "weights_gib": stage.items.weights / GIB,
            "peak_activation_gib": stage.items.activations / GIB,
            "avail_kv_gib": stage.available_bytes / GIB,
            "kv_tokens": float(kv.tokens),
            "max_concurrency": kv.max_concurrency,
        }
        return {name: value / float(self.printed[name]) - 1 for name, value in planned.items() if self.printed[name]}

    @property
    def is_within_band(self) -> bool:
        """Return whether the printed cache lies in the plan's band, which is the last stage's in a pipeline."""
        kv = self.plan.kv
        offset = self.plan.memory.stages[0].available_bytes - kv.available_bytes
        printed = float(self.printed["avail_kv_gib"]) * GIB
        return kv.available_low_bytes + offset <= printed <= kv.available_high_bytes + offset


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A log that is no case, by its row in the data, and why."""

    row: str
    model: str
    version: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCases:
    """The logs that could be asked about, and those that could not: every row of the data is one or the other."""

    cases: tuple[LogCase, ...]
    left_out: tuple[LeftOut, ...]


def log_cases() -> LogCases:
    """Return every log that states its memory, planned."""
    cases: list[LogCase] = []
    left_out: list[LeftOut] = []
    with LOGS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            reason = _reason_to_leave(row)
            name = {"row": row["row"], "model": row["model"], "version": row["version"]}
            if reason is not None:
                left_out.append(LeftOut(**name, reason=reason))
                continue
            try:
                plan = plan_serving(_question(row)).plan
            except PlimsollError as refused:
                left_out.append(LeftOut(**name, reason=f"refused: {refused}"))
                continue
            cases.append(LogCase(**name, printed=row, plan=plan))
    return LogCases(cases=tuple(cases), left_out=tuple(left_out))


def _reason_to_leave(row: Mapping[str, str]) -> str | None:
    if row["engine"] != "vllm" or not row["version"][:1].isdigit():
        return "no released version of vLLM"
    if not row["avail_kv_gib"] or not row["weights_gib"]:
        return "prints no weights or no cache"
    if row["gpu"] not in GPUS:
        return f"card {row['gpu']}"
    return None


def _question(row: Mapping[str, str]) -> ServingQuestion:
    model = catalogue().model(row["model"])
    tensor, pipeline = int(row["tp"]), int(row["pp"])
    gpus = GpuCount(minimum=tensor * pipeline, maximum=tensor * pipeline)
    return ServingQuestion(
        engine="vllm",
        model=describe_config(model.config, name=model.id),
        hardware=Hardware(gpu=catalogue().gpu(GPUS[row["gpu"]]), gpus=gpus, gpus_per_node=8),
        weights=model.stored_weights or WEIGHTS.get(row["weight_quant"]) or DTYPES[row["dtype"]],
        kv_cache="fp8" if row["kv_cache_dtype"] == "fp8" else DTYPES[row["dtype"]],
        max_model_len=int(row["max_model_len"]),
        input_tokens=TRAFFIC_TOKENS,
        output_tokens=TRAFFIC_TOKENS,
        engine_version=row["version"],
        gpu_memory_utilization=float(row["gpu_memory_utilization"]),
        max_num_batched_tokens=_whole(row["max_num_batched_tokens"]),
        max_num_seqs=_whole(row["max_num_seqs"]),
        layout=ServingLayoutRequest(
            tensor_parallel=tensor,
            pipeline_parallel=pipeline,
            data_parallel=1,
            attention_data_parallel=1,
            expert_parallel=1,
        ),
    )


def _whole(text: str) -> int | None:
    """Return the number, or None where the log left the version's default."""
    return int(text) if text else None


def log_lines(found: LogCases) -> Iterator[str]:
    """Yield one line a log and the means."""
    names = ("weights_gib", "peak_activation_gib", "avail_kv_gib", "kv_tokens", "max_concurrency")
    yield (
        f"{'row':>3} {'model':46} {'version':8} {'ranks':>5} " + " ".join(f"{name:>19}" for name in names) + "  in band"
    )
    for case in found.cases:
        errors = case.errors()
        ranks = f"{case.printed['tp']}x{case.printed['pp']}"
        cells = " ".join(f"{errors[name]:+19.2%}" if name in errors else f"{'-':>19}" for name in names)
        name = f"{case.row:>3} {case.model[-46:]:46} {case.version:8}"
        yield f"{name} {ranks:>5} {cells}  {'yes' if case.is_within_band else 'no'}"
    for name in names:
        sizes = sorted(abs(case.errors()[name]) for case in found.cases if name in case.errors())
        yield (
            f"{name:20} {len(sizes):3} rows: mean {sum(sizes) / len(sizes):.2%}, median {sizes[len(sizes) // 2]:.2%}, "
            f"worst {sizes[-1]:.2%}"
        )
    inside = sum(case.is_within_band for case in found.cases)
    yield f"printed cache within the band: {inside} of {len(found.cases)}"
    yield f"{len(found.left_out)} rows are no case:"
    for other in found.left_out:
        yield f"{other.row:>3} {other.model[-46:]:46} {other.version[:20]:20} {other.reason}"
