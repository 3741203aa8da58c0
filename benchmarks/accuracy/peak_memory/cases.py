"""The measured memory rows as questions with a fixed layout, or the reason why a row cannot be asked about."""

from __future__ import annotations

import csv
import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy.peak_memory.held_out import is_held_out
from benchmarks.accuracy.peak_memory.measured_models import measured_config, measured_model
from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.planners.ground.hardware import GpuCount, Hardware
from plimsoll.planners.jobs.adapters import is_matrix, is_named, module_path
from plimsoll.planners.jobs.pipeline_layouts import own_way
from plimsoll.planners.questions import LayoutRequest, Lora, Overlap, Recompute, TrainingQuestion
from plimsoll.planners.stacks.profile import load_profile

DATA = Path(__file__).parents[2] / "data"
GIB = 2**30
GPUS = {
    "A100-80GB": "a100-sxm-80gb",
    "A100-SXM4-40GB": "a100-sxm-40gb",
    "A10G-24GB": "a10g-24gb",
    "B200-SXM": "b200-sxm-180gb",
    "H100-80GB": "h100-sxm-80gb",
    "H100-80GB-SXM": "h100-sxm-80gb",
    "H100-96GB-HBM2e 500W": "h100-sxm-96gb",
    "L40S-48GB": "l40s-48gb",
}
FRAMEWORKS = {
    "HF Trainer": "accelerate",
    "HF PEFT": "accelerate",
    "Megatron-LM": "megatron",
    "Megatron-Bridge": "megatron",
    "litgpt": "litgpt",
    "nanotron": "nanotron",
    "torchtitan": "fsdp2",
    "torchtune": "torchtune",
    "DeepSpeed": "deepspeed",
    "llm-foundry": "composer",
}
# What fms-acceleration's and litgpt's target names are called in the checkpoints of the families measured.
MODULES = {
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "projection": "o_proj",
    "mlp": "gate_proj up_proj down_proj",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCase:
    """One measured run: `measured_bytes` is None where only the outcome is known.

    `kind` says which of the planner's figures was read: allocated, reserved, peak
    (as nvidia-smi shows it), reserved on rank 0 or unstated.
    """

    case_id: str
    source: str
    stack: str
    config: Mapping[str, Any]
    question: TrainingQuestion
    measured_bytes: float | None
    kind: str
    ran: bool
    is_point: bool
    is_held_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """All rows that can be asked about, and how many cannot, by stack and reason."""

    cases: tuple[MemoryCase, ...]
    left_out: Counter[tuple[str, str]]


class CannotAsk(Exception):
    """A row that is no question: what it lacks."""


def memory_cases() -> Cases:
    """Return every row of the memory files as a case or under the reason why not."""
    cases: list[MemoryCase] = []
    left_out: Counter[tuple[str, str]] = Counter()
    for row in _rows():
        stack = row["framework"].split(" (")[0].split(" v0")[0]
        try:
            case = _case(row, stack)
            cases.append(case)
            cases.extend(_as_the_driver_showed_it(case, row))
        except (CannotAsk, PlimsollError) as problem:
            left_out[stack, _short(str(problem))] += 1
    return Cases(cases=tuple(cases), left_out=left_out)


def _rows() -> Iterator[dict[str, str]]:
    with (DATA / "train_memory.csv").open(newline="") as file:
        # The 14 nanotron rows there are the best runs of the larger table and stand in it.
        yield from (row for row in csv.DictReader(file) if not row["framework"].startswith("nanotron"))
    with (DATA / "nanotron_h100.csv").open(newline="") as file:
        for number, row in enumerate(csv.DictReader(file)):
            yield _nanotron_row(number, row)


def _nanotron_row(number: int, row: Mapping[str, str]) -> dict[str, str]:
    """Return a row of nanotron's table under the names of the other table."""
    return {
        **row,
        "case_id": f"nanotron-{number}",
        "source": "Ultra-Scale Playbook benchmarks_interactive.html",
        "framework": "nanotron",
        "model": f"llama-like {row['model']}",
        "moe": "",
        "cp": "1",
        "ep": "1",
        "sharding": f"ZeRO-{row['zero_stage']}",
        "method": "pretrain full",
        "adapter": "",
        "base_quant": "",
        "precision": "bf16",
        "grad_acc_or_global_batch": f"gbs {row['global_batch']}",
        "recompute": "none",
        "fusions": "",
        "optimizer": "AdamW",
        "mem_gib": row["gpu_mem_gb"],
        # The run writes its table on world rank 0 (nanotron, helpers or utils: `log_throughput`).
        "mem_kind": "rank 0",
        "use_for": "point" if row["gpu_mem_gb"] else "fit",
        "notes": "",
    }


def _case(row: dict[str, str], stack: str) -> MemoryCase:
    if row["use_for"] in ("ratio", "delta"):
        raise CannotAsk(f"published for a {row['use_for']} only")
    question = _question(row)
    configuration = [
        row[name]
        for name in ("model", "n_gpus", "tp", "pp", "cp", "ep", "sharding", "method", "fusions", "micro_batch", "seq")
    ]
    measured = float(row["mem_gib"]) * GIB if row["mem_gib"] else None
    return MemoryCase(
        case_id=row["case_id"],
        source=row["source"],
        stack=stack,
        config=measured_config(row),
        question=question,
        measured_bytes=measured,
        kind=_kind(row["mem_kind"]),
        ran=row["outcome"].startswith("ok"),
        is_point=row["use_for"] == "point" and measured is not None,
        is_held_out=is_held_out([stack, *configuration]),
    )


def _as_the_driver_showed_it(case: MemoryCase, row: Mapping[str, str]) -> Iterator[MemoryCase]:
    """Yield the same run as nvidia-smi read it, where the source noted that beside the allocator's figure."""
    shown = re.search(r"nvidia-smi ([\d.]+) MiB", row["notes"])
    if shown and case.is_point:
        yield dataclasses.replace(
            case,
            case_id=f"{case.case_id}-nvidia-smi",
            stack=f"{case.stack[:24]}, nvidia-smi",
            measured_bytes=float(shown[1]) * 2**20,
            kind="nvidia-smi",
        )


def _question(row: dict[str, str]) -> TrainingQuestion:
    framework = next((name for start, name in FRAMEWORKS.items() if row["framework"].startswith(start)), None)
    if framework is None or not row["n_gpus"] or row["gpu"] not in GPUS:
        raise CannotAsk("the layout or the GPU is not stated")
    if row["method"].startswith("adapter"):
        raise CannotAsk("adapters other than LoRA are no method of the service")
    gpus, micro_batch = int(row["n_gpus"]), int(row["micro_batch"])
    degrees = {name: int(row[name] or 1) for name in ("tp", "pp", "cp", "ep")}
    data = gpus // (degrees["tp"] * degrees["pp"] * degrees["cp"])
    if framework == "fsdp2":
        # torchtitan names the local batch, which its schedules cut into as many micro-batches as there are stages.
        micro_batch = max(micro_batch // degrees["pp"], 1)
    stage = _zero_stage(row, framework)
    model = measured_model(tuple(sorted((name, row.get(name) or "") for name in MODEL_COLUMNS)))
    return TrainingQuestion(
        model=model,
        hardware=Hardware(
            gpu=catalogue().gpu(GPUS[row["gpu"]]), gpus=GpuCount(minimum=gpus, maximum=gpus), gpus_per_node=min(gpus, 8)
        ),
        method=row["method"].replace("pretrain ", ""),
        precision=_precision(row, gpus),
        sequence_length=_sequence_length(row),
        global_batch_size=_global_batch(row, data, micro_batch),
        micro_batch_size=micro_batch,
        recompute=Recompute(mode=_recompute(row)),
        fused_cross_entropy="liger" in row["fusions"],
        activation_offload=False,
        kernels=_kernels(row, framework),
        lora=_lora(row, model),
        layout=LayoutRequest(
            data_parallel=data,
            tensor_parallel=degrees["tp"],
            pipeline_parallel=degrees["pp"],
            virtual_pipeline=1,
            context_parallel=degrees["cp"],
            expert_parallel=degrees["ep"],
            sequence_parallel=degrees["tp"] > 1,
            zero_stage=stage,
            shard_group=data,
            offload="none",
            # No source says that it divided stages otherwise than its stack does by itself, or hid more traffic.
            pipeline_layout=own_way(load_profile(framework).can.pipeline_layouts) if degrees["pp"] > 1 else None,
            overlap=Overlap(expert_parallel=False),
        ),
        framework=framework,
    )


def _kind(stated: str) -> str:
    if stated in ("", "-"):
        return "unspecified"
    return stated if stated == "rank 0" else stated.split(" ")[0].rstrip("?")


MODEL_COLUMNS = ("model", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "tied_embeddings", "moe")


def _zero_stage(row: Mapping[str, str], framework: str) -> int:
    sharding = row["sharding"]
    if sharding == "none":
        return 0
    if sharding.startswith("ZeRO-"):
        return int(sharding[len("ZeRO-")])
    if "per recipe" in sharding:
        raise CannotAsk(f"{framework}: FSDP or DDP is not stated")
    return 3


def _precision(row: Mapping[str, str], gpus: int) -> str:
    stated = row["precision"]
    if stated.startswith("fp8"):
        return "fp8-mixed"
    if stated.startswith(("bf16-true", "bf16 base")):
        return "bf16"
    if stated.startswith(("bfloat16 weights", "float16 weights")):
        # FSDP under mixed precision lifts what learns to fp32; a single GPU trains the weights as they were loaded.
        is_mixed = "autocast" in stated and gpus > 1
        return "bf16-mixed" if is_mixed else "bf16"
    return "bf16-mixed"


def _sequence_length(row: Mapping[str, str]) -> int:
    """Return the tokens of a sample: what the source counted where it differs from the setting."""
    stated = int(row["seq"])
    counted = re.search(r"tokens/sample derived here = (\d+)", row["notes"])
    if counted and abs(int(counted[1]) / stated - 1) > DERIVED_TOLERANCE:
        return int(counted[1])
    return stated


DERIVED_TOLERANCE = 0.1


def _global_batch(row: Mapping[str, str], data: int, micro_batch: int) -> int:
    stated = re.search(r"gbs (\d+)", row["grad_acc_or_global_batch"])
    if stated is None:
        return data * micro_batch
    whole = int(stated[1]) // (data * micro_batch)
    return max(whole, 1) * data * micro_batch


def _recompute(row: Mapping[str, str]) -> str:
    stated = row["recompute"]
    if stated.startswith(("full", "FSDP activation checkpointing")):
        return "full"
    return "selective" if stated.startswith("selective") else "none"


def _kernels(row: Mapping[str, str], framework: str) -> str | None:
    fusions = row["fusions"]
    if framework == "accelerate":
        return "foak" if "foak" in fusions or "liger" in fusions else "eager"
    if framework == "megatron":
        # Megatron compiles the cross-entropy that it calls fused; its other kernels are hand-written always.
        return "compiled" if "fused cross-entropy" in fusions else None
    if fusions.startswith("compile"):
        return "compiled"
    return "eager" if fusions.startswith("eager") else None


def _lora(row: Mapping[str, str], model: ModelSpec) -> Lora:
    """Return a row's adapters; of the names that a recipe has for several families peft takes those a model has."""
    stated = row["adapter"]
    rank = re.search(r"r=(\d+)", stated)
    if rank is None:
        return Lora()
    if " on q,v" in stated:
        modules = ["q_proj", "v_proj"]
    elif " on " in stated:
        words = stated.split(" on ")[1].split(",")
        modules = [module for word in words for module in MODULES.get(word, "").split()]
    else:
        weights = [weight for block in (*model.layers, model.head) for weight in block.weights]
        paths = [module_path(weight) for weight in weights if is_matrix(weight)]
        modules = [name for name in stated.split()[1:] if any(is_named(path, (name,)) for path in paths)]
    return Lora(rank=int(rank[1]), target_modules=tuple(modules), double_quantization=row["base_quant"] == "bnb.nf4-dq")


def _short(problem: str) -> str:
    return problem if len(problem) <= LONGEST_REASON else f"{problem[:LONGEST_REASON]}…"


LONGEST_REASON = 90
