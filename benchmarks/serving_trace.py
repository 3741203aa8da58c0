"""Serving plans beside their traces: `python -m benchmarks.serving_trace [WORD ...]`, cases that hold a word alone.

Each line gives a plan's weights, cache and profiling pass on one rank, and how far
each lies from what the trace held; the peak last. `--owners` adds what lived at the
profiling pass's peak.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.hardware import GpuCount, Hardware
from plimsoll.planners.questions import ServingLayoutRequest, ServingQuestion
from plimsoll.planners.serving.planning import plan_serving

GPU = "h100-sxm-80gb"
GIB = 2**30
INPUT_TOKENS, OUTPUT_TOKENS = 1024, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A deployment to plan and to trace; `layout` holds degrees, `asked` more of the question."""

    model: str
    weights: str = "bf16"
    layout: Mapping[str, int] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the case in words."""
        degrees = (f"{name.removesuffix('_parallel')} {degree}" for name, degree in self.layout.items())
        return " ".join(
            (self.model, self.weights, *degrees, *(f"{name} {value}" for name, value in self.asked.items()))
        )


TENSOR_2, TENSOR_4, TENSOR_8 = ({"tensor_parallel": ranks} for ranks in (2, 4, 8))
LONG = {"max_model_len": 32768, "input_tokens": 16384}
CASES: tuple[Case, ...] = (
    Case(model="meta-llama/Llama-3.1-8B"),
    Case(model="codellama/CodeLlama-7b-hf"),
    Case(model="meta-llama/Llama-3.3-70B-Instruct", layout=TENSOR_4),
    Case(model="meta-llama/Llama-3.3-70B-Instruct", weights="fp8", layout=TENSOR_4),
    Case(model="Qwen/Qwen3-32B", weights="int8", layout=TENSOR_2),
    Case(model="google/gemma-2-9b-it"),
    Case(model="google/gemma-2-27b-it", layout=TENSOR_2),
    Case(model="google/gemma-3-1b-it", asked=LONG),
    Case(model="mistralai/Mistral-7B-v0.1", asked=LONG),
    Case(model="mistralai/Mixtral-8x7B-v0.1", layout=TENSOR_2),
    Case(model="mistralai/Mixtral-8x7B-v0.1", weights="fp8"),
    Case(model="Qwen/Qwen3-30B-A3B"),
    Case(model="Qwen/Qwen3-235B-A22B", weights="fp8", layout={"tensor_parallel": 4, "expert_parallel": 4}),
    Case(model="Qwen/Qwen1.5-MoE-A2.7B"),
    Case(model="Qwen/Qwen1.5-MoE-A2.7B", weights="int4"),
    Case(model="allenai/OLMoE-1B-7B-0924", asked={"max_model_len": 4096}),
    Case(model="openai/gpt-oss-20b", weights="mxfp4"),
    Case(model="openai/gpt-oss-120b", weights="mxfp4", layout=TENSOR_2),
    Case(model="deepseek-ai/DeepSeek-V2-Lite"),
    Case(model="deepseek-ai/DeepSeek-V2", weights="fp8", layout=TENSOR_8),
    Case(model="deepseek-ai/DeepSeek-V2", weights="int4", layout=TENSOR_4),
    Case(model="meta-llama/Llama-3.1-8B", layout={"pipeline_parallel": 2}),
    Case(model="Qwen/Qwen3-30B-A3B", layout={"pipeline_parallel": 4}),
    Case(model="google/gemma-2-27b-it", layout={"pipeline_parallel": 2}),
    Case(model="meta-llama/Llama-3.1-8B", weights="int4"),
    Case(model="meta-llama/Llama-3.1-8B", weights="nf4"),
    Case(model="meta-llama/Llama-3.3-70B-Instruct", weights="int4"),
    Case(model="meta-llama/Llama-3.3-70B-Instruct", weights="nf4"),
    Case(model="mistralai/Mixtral-8x7B-v0.1", weights="int4"),
    Case(model="mistralai/Mixtral-8x7B-v0.1", weights="nf4"),
)


def planned(case: Case) -> dict[str, Any]:
    """Return what a worker is told to prove the case's plan."""
    entry = catalogue().model(case.model)
    config = dict(entry.config)
    degrees = {"tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 1, **case.layout}
    gpus = degrees["tensor_parallel"] * degrees["pipeline_parallel"] * degrees.get("attention_data_parallel", 1)
    question = ServingQuestion(
        engine="vllm",
        model=describe_config(config, name=case.model),
        hardware=Hardware(gpu=catalogue().gpu(GPU), gpus=GpuCount(minimum=gpus, maximum=gpus), gpus_per_node=8),
        weights=case.weights,
        layout=ServingLayoutRequest(**degrees),
        **{"max_model_len": 8192, "input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS, **case.asked},
    )
    plan = dataclasses.asdict(plan_serving(question).plan)
    return {
        "level": "trace",
        "kind": "infer",
        "plan_id": "benchmark",
        "gpu": GPU,
        "model": {"name": case.model, "config": config},
        "plan": plan,
    }


def compare(case: Case) -> dict[str, Any]:
    """Return a case's terms as planned and traced, the peak and who owned that of the profiling pass."""
    from plimsoll.service.worker.proofs.refusals.served import proved_deployment
    from plimsoll.service.worker.proofs.serving import TERMS, measured_terms
    from plimsoll.service.worker.recording.curve import largest_owners
    from plimsoll.service.worker.serving.passes import PROFILE
    from plimsoll.service.worker.serving.running import trace_passes

    request = planned(case)
    began = time.monotonic()
    ledger = trace_passes(proved_deployment(request), lambda *_progress: None)
    items = request["plan"]["memory"]["items"]
    (profile,) = ((first, end) for mark, first, end in ledger.phase_ranges() if mark.phase == PROFILE)
    return {
        "case": case.name,
        "planned": {**{name: items[name] for name in TERMS}, "peak": sum(items[name] for name in TERMS)},
        "traced": {**measured_terms(ledger), "peak": ledger.peak().allocated_bytes},
        "owners": largest_owners(ledger.peak(*profile)),
        "seconds": time.monotonic() - began,
    }


def line(row: Mapping[str, Any]) -> str:
    """Return a case in a line: each term's planned GiB, and planned over traced."""
    shown = "  ".join(
        f"{name} {planned_bytes / GIB:7.3f} {planned_bytes / row['traced'][name] - 1:+7.2%}"
        for name, planned_bytes in row["planned"].items()
    )
    return f"{row['case']:58} {shown}  {row['seconds']:5.1f} s"


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--owners", action="store_true")
    arguments = parser.parse_args()
    for case in CASES:
        if arguments.words and not any(word in case.name for word in arguments.words):
            continue
        row = compare(case)
        print(line(row), flush=True)
        if arguments.owners:
            for owner in row["owners"]:
                print(f"    {owner['bytes'] / GIB:8.4f} GiB  {owner['count']:4} x {owner['kind']}: {owner['name']}")


if __name__ == "__main__":
    main()
