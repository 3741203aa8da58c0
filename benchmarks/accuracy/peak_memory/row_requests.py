"""The request that a row of the memory files is asked by: what its source says of the run, and not what it measured."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.accuracy.peak_memory.measured_models import measured_config
from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.families import describe_config
from plimsoll.planners.jobs.adapters import is_matrix, is_named, module_path
from plimsoll.planners.jobs.pipeline_layouts import own_way
from plimsoll.planners.stacks.profile import load_profile

Row = Mapping[str, str]
DATA = Path(__file__).parents[2] / "data"
GPUS = {
    "A100-80GB": "a100-sxm-80gb",
    "A100-SXM4-40GB": "a100-sxm-40gb",
    "A10G-24GB": "a10g-24gb",
    "B200-SXM": "b200-sxm-180gb",
    "H100-80GB": "h100-sxm-80gb",
    "H100-80GB (8 per node, AWS EFA)": "h100-sxm-80gb",
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
# What litgpt's target names are called in the checkpoints of the families measured; those that a model has are meant.
# litgpt adapts parts of one matrix where a checkpoint has query, key and value in one; a request names all of it.
MODULES = {
    "query": ("q_proj", "query_key_value"),
    "key": ("k_proj",),
    "value": ("v_proj",),
    "projection": ("o_proj", "dense"),
    "mlp": ("gate_proj", "up_proj", "down_proj", "fc1", "fc2", "dense_h_to_4h", "dense_4h_to_h"),
    "q": ("q_proj", "query_key_value"),
    "v": ("v_proj",),
}
GPUS_PER_NODE = 8
DERIVED_TOLERANCE = 0.1


class CannotAsk(Exception):
    """A row that is no request: what it lacks."""


def row_request(row: Row) -> dict[str, Any]:
    """Return the body of a row's request, its layout fixed as it ran; raises CannotAsk."""
    framework = next((name for start, name in FRAMEWORKS.items() if row["framework"].startswith(start)), None)
    if framework is None or not row["n_gpus"] or row["gpu"] not in GPUS:
        raise CannotAsk("the layout or the GPU is not stated")
    if row["method"].startswith("adapter"):
        raise CannotAsk("adapters other than LoRA are no method of the service")
    gpus = int(row["n_gpus"])
    layout = _layout(row, framework, gpus)
    config = measured_config(row)
    training = {
        "method": row["method"].replace("pretrain ", ""),
        "precision": _precision(row, gpus),
        "sequence_length": _sequence_length(row),
        "recompute": _recompute(row),
        "fused_cross_entropy": "liger" in row["fusions"],
        "activation_offload": False,
        **_batch(row, layout, framework),
        **_kernels(row, framework),
    }
    if training["method"] != "full":
        training["lora"] = _lora(row, describe_config(config, name=row["model"]))
    return {
        "model": {"config": config},
        "hardware": {"gpu": GPUS[row["gpu"]], "gpus": gpus, "gpus_per_node": min(gpus, GPUS_PER_NODE)},
        "training": training,
        "layout": layout,
        "framework": framework,
        **stated_version(row),
    }


def stated_version(row: Row) -> dict[str, str]:
    """Return the version of a row's framework as a request has it; nothing where its source states none."""
    version = _versions().get(row["source"]) if "source" in row else None
    return {} if version is None else {"framework_version": version}


@functools.cache
def _versions() -> Mapping[str, str]:
    with (DATA / "framework_versions.csv").open(newline="", encoding="utf-8") as file:
        return {row["source"]: row["framework_version"] for row in csv.DictReader(file)}


def nanotron_row(row: Row) -> dict[str, str]:
    """Return what a row of nanotron's table says of its run, under the names of the other table."""
    run = (
        *("n_gpus", "gpu", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "tied_embeddings"),
        *("seq", "micro_batch", "dp", "tp", "pp"),
    )
    sequences = int(row["dp"]) * int(row["micro_batch"]) * int(row["grad_acc"])
    return {
        **{name: row[name] for name in run},
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
        "grad_acc_or_global_batch": f"gbs {sequences}",
        "recompute": "none",
        "fusions": "",
        "notes": "",
    }


def _layout(row: Row, framework: str, gpus: int) -> dict[str, Any]:
    tensor, pipeline, context, expert = (int(row[name] or 1) for name in ("tp", "pp", "cp", "ep"))
    data = gpus // (tensor * pipeline * context)
    layout: dict[str, Any] = {
        "data_parallel": data,
        "tensor_parallel": tensor,
        "pipeline_parallel": pipeline,
        "virtual_pipeline": 1,
        "context_parallel": context,
        "expert_parallel": expert,
        "sequence_parallel": tensor > 1,
        "zero_stage": _zero_stage(row, framework),
        "shard_group": data,
        "offload": "none",
        # No source says that it hid the exchange with experts.
        "overlap": {"expert_parallel": False},
    }
    if pipeline > 1:
        # Nor that it divided stages otherwise than its stack does by itself.
        layout["pipeline_layout"] = own_way(load_profile(framework).can.pipeline_layouts)
    return layout


def _zero_stage(row: Row, framework: str) -> int:
    sharding = row["sharding"]
    if sharding == "none":
        return 0
    if sharding.startswith("ZeRO-"):
        return int(sharding[len("ZeRO-")])
    if "per recipe" in sharding:
        raise CannotAsk(f"{framework}: FSDP or DDP is not stated")
    return 3


def _precision(row: Row, gpus: int) -> str:
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


def _sequence_length(row: Row) -> int:
    """Return the tokens of a sample: what the source counted where it differs from the setting."""
    stated = int(row["seq"])
    counted = re.search(r"tokens/sample derived here = (\d+)", row["notes"])
    if counted and abs(int(counted[1]) / stated - 1) > DERIVED_TOLERANCE:
        return int(counted[1])
    return stated


def _batch(row: Row, layout: Mapping[str, Any], framework: str) -> dict[str, int]:
    """Return the micro-batch and the whole number of them that comes nearest below the batch that is stated."""
    micro_batch = int(row["micro_batch"])
    if framework == "fsdp2":
        # torchtitan names the local batch, which its schedules cut into as many micro-batches as there are stages.
        micro_batch = max(micro_batch // layout["pipeline_parallel"], 1)
    together = layout["data_parallel"] * micro_batch
    stated = re.search(r"gbs (\d+)", row["grad_acc_or_global_batch"])
    accumulated = 1 if stated is None else max(int(stated[1]) // together, 1)
    return {"micro_batch_size": micro_batch, "global_batch_size": accumulated * together}


def _recompute(row: Row) -> str:
    stated = row["recompute"]
    if stated.startswith(("full", "FSDP activation checkpointing")):
        return "full"
    return "selective" if stated.startswith("selective") else "none"


def _kernels(row: Row, framework: str) -> dict[str, str]:
    """Return the kernels; nothing where they are those that the stack runs by itself."""
    fusions = row["fusions"]
    if framework == "accelerate":
        return {"kernels": "foak" if "foak" in fusions or "liger" in fusions else "eager"}
    if framework == "megatron":
        # SimuMax fuses the cross-entropy by Transformer Engine's kernel (docs/strategy.md there).
        return {"kernels": "fused"} if "fused cross-entropy" in fusions else {}
    if fusions.startswith("compile"):
        return {"kernels": "compiled"}
    return {"kernels": "eager"} if fusions.startswith("eager") else {}


def _lora(row: Row, model: ModelSpec) -> dict[str, Any]:
    """Return a row's adapters; of the names that a recipe has for several families peft takes those a model has."""
    stated = row["adapter"]
    rank = re.search(r"r=(\d+)", stated)
    if rank is None:
        raise CannotAsk("the adapters' rank is not stated")
    weights = [weight for block in (*model.layers, model.head) for weight in block.weights]
    paths = [module_path(weight) for weight in weights if is_matrix(weight)]
    if " on " in stated:
        words = re.split("[ ,:]+", stated.split(" on ")[1])
        named = [module for word in words for module in MODULES.get(word, ())]
    else:
        named = stated.split()[1:]
    modules = [name for name in named if any(is_named(path, (name,)) for path in paths)]
    return {
        "rank": int(rank[1]),
        "target_modules": modules,
        "double_quantization": row["base_quant"] == "bnb.nf4-dq",
    }
