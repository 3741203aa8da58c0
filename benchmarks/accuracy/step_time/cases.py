"""Published runs as cases: the request each is asked by, with its layout as it ran, and the measured seconds of a step.

A row that cannot be turned into a case is counted by its reason and never
guessed at. What a source did not print but surely chose well (micro-batch,
virtual stages) is left open in the request, and the plan's own choice is timed.
"""

from __future__ import annotations

import csv
import dataclasses
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy.peak_memory.row_requests import nanotron_row, row_request, stated_version
from benchmarks.accuracy.step_time.recipes import Recipe, recipe_of
from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.hardware import GpuCount, Hardware
from plimsoll.planners.ground.terms import RECOMPUTE_MODES
from plimsoll.planners.jobs.pipeline_layouts import own_way
from plimsoll.planners.stacks.profile import load_profile

DATA = Path(__file__).resolve().parents[2] / "data"
Row = Mapping[str, str]

# Three of ten configurations are held out, chosen by a checksum of the configuration, so that a configuration
# published twice falls on one side.
HELD_OUT_OF_TEN = 3
DEEP_PIPELINE = 8
GIB = 2**30

# How sources name the card, and the catalogue's card with what the source says differs from it.
GPUS: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "A100-40GB": ("a100-sxm-40gb", {}),
    "A100-80GB": ("a100-sxm-80gb", {}),
    "A100-SXM4-80GB (Selene)": ("a100-sxm-80gb", {}),
    "A100-SXM4-80GB, 800 Gb/s per 8-GPU node": ("a100-sxm-80gb", {"nic_bytes_per_second": 12.5e9}),
    "B200-SXM": ("b200-sxm-180gb", {}),
    "DGX-B200": ("b200-sxm-180gb", {}),
    "DGX-B300": ("b300-sxm-270gb", {}),
    "DGX-GB200": ("gb200-nvl-186gb", {}),
    "DGX-GB300": ("gb300-nvl-279gb", {}),
    "DGX-H100": ("h100-sxm-80gb", {}),
    "H100-80GB": ("h100-sxm-80gb", {}),
    "H100-80GB-SXM": ("h100-sxm-80gb", {}),
    "H100-80GB (8 per node, AWS EFA)": ("h100-sxm-80gb", {}),
    "H100-SXM5-80GB": ("h100-sxm-80gb", {}),
    "H100-SXM5-80GB 700W, RoCE 400G": ("h100-sxm-80gb", {}),
    "H100-96GB-HBM2e 500W": ("h100-sxm-96gb", {}),
}
SOURCES: tuple[tuple[str, str, str], ...] = (
    # (words of the source, its short name, the framework)
    ("cases_april2021", "Megatron SC'21 table 1", "megatron"),
    ("cases_jan2021", "Megatron, January 2021", "megatron"),
    ("megatron-lm-2nd-table", "Megatron SC'21 table 2", "megatron"),
    ("megatron-turing-nlg", "MT-NLG 530B", "megatron"),
    ("calculon", "selective recompute table 5", "megatron"),
    ("vTrain", "vTrain", "megatron"),
    ("model_table.png", "Megatron-LM README, H100", "megatron"),
    ("Megatron-LM examples", "Megatron-LM Llama examples", "megatron"),
    ("2407.21783", "Llama 3 table 4", "megatron"),
    ("SimuMax", "SimuMax, B200", "megatron"),
    ("Megatron-Bridge", "Megatron-Bridge", "megatron"),
    ("NeMo", "NeMo", "megatron"),
    ("llm-foundry", "llm-foundry", "composer"),
    ("torchtitan", "torchtitan", "fsdp2"),
    ("Ultra-Scale", "Ultra-Scale table", "nanotron"),
)
# The published models of experts that rows are of.
MIXTURES = {
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "deepseek-v2": "deepseek-ai/DeepSeek-V2",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "qwen3-235b": "Qwen/Qwen3-235B-A22B",
    "qwen3-30b": "Qwen/Qwen3-30B-A3B",
    "kimi-k2": "moonshotai/Kimi-K2-Instruct",
}
PRECISIONS = {
    "fp16": "fp16-mixed",
    "bf16": "bf16-mixed",
    "BF16": "bf16-mixed",
    "amp_bf16": "bf16-mixed",
    "bf16, fp32 grad accumulation": "bf16-mixed",
    "FP8": "fp8-mixed",
    "FP8 hybrid": "fp8-mixed",
    "FP8-CS": "fp8-mixed",
    "FP8-CS (FP8-MX)": "fp8-mixed",
    "FP8-MX": "fp8-mixed",
    "MXFP8": "fp8-mixed",
    "amp_fp8": "fp8-mixed",
    "fp8-tensorwise": "fp8-mixed",
}
ZERO_STAGES = {
    "": 1,
    "none": 0,
    "ZeRO-0": 0,
    "ZeRO-1": 1,
    "ZeRO-1 (distributed optimizer)": 1,
    "distributed optimizer": 1,
    "distributed optimizer (default)": 1,
    "FSDP (ZeRO-2-like, no reshard after fwd)": 1,
    "SHARD_GRAD_OP": 2,
    "ZeRO-3": 3,
    "FULL_SHARD": 3,
    "FSDP": 3,
    "FSDP2": 3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measured run.

    `layout` holds several values where the source left a choice open, which the `request` leaves open too;
    `recompute_modules` are what selective recompute names, empty where that is the stack's own way;
    `peak_bytes` is what the run printed, for counting runs by it, and None unless printed.
    """

    identity: str
    table: str
    source: str
    framework: str
    gpu: str
    model_name: str
    model: ModelSpec
    hardware: Hardware
    precision: str
    attention: str
    kernels: str | None
    sequence_length: int
    global_batch_size: int
    layout: Mapping[str, tuple[int, ...]]
    recompute_modules: tuple[str, ...] = ()
    request: Mapping[str, Any]
    seconds: float
    peak_bytes: float | None

    @property
    def held_out(self) -> bool:
        """Return whether the case is kept from every fit."""
        return zlib.crc32(self.identity.encode()) % 10 < HELD_OUT_OF_TEN


def all_cases() -> tuple[list[Case], Counter[str]]:
    """Return every row that could be turned into a case, and how many could not be, by reason."""
    cases: list[Case] = []
    left_out: Counter[str] = Counter()
    for row, turn in _rows():
        made = turn(row)
        if isinstance(made, str):
            left_out[made] += 1
        else:
            cases.append(made)
    return cases, left_out


def _rows() -> Iterator[tuple[Row, Callable[[Row], Case | str]]]:
    for name, turn in (("train_step.csv", published_case), ("nanotron_h100.csv", nanotron_case)):
        with (DATA / name).open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                yield row, turn


def published_case(row: Row) -> Case | str:
    """Return a row of train_step.csv as a case, or why it is none."""
    source, framework = next(
        ((short, stack) for words, short, stack in SOURCES if words.lower() in row["source"].lower()), ("", "")
    )
    problem = _problem(row, source)
    if problem:
        return problem
    if row["zero_fsdp_distopt"] == "ZeRO-3":
        framework = "deepspeed"
    if row["zero_fsdp_distopt"] == "FSDP" and framework == "megatron":
        framework = "fsdp2"
    attention = "eager" if _predates_flash(source) else "flash"
    config = (
        _mixture_config(row)
        if row["moe"]
        else _dense_config(row, gated=row["gated_mlp"] == "1", tied=row["gated_mlp"] != "1")
    )
    model = describe_config(config, name=row["model"])
    if row["moe"]:
        source = f"{source}, experts"
    recipe = recipe_of(row["case_id"])
    data, tensor, pipeline, context = (int(row[key] or 1) for key in ("dp", "tp", "pp", "cp"))
    if data * tensor * pipeline * context != int(row["n_gpus"]):
        return "the printed degrees do not multiply to the GPUs"
    layout = {
        "data_parallel": (data,),
        "tensor_parallel": (tensor,),
        "pipeline_parallel": (pipeline,),
        "context_parallel": (context,),
        "expert_parallel": (int(row["ep"] or 1),),
        "zero_stage": (ZERO_STAGES[row["zero_fsdp_distopt"]],),
        "sequence_parallel": (int(row["sequence_parallel"].startswith("yes") or _surely_sequence_parallel(row)),),
        "expert_overlap": (int(recipe is not None and recipe.hides_expert_exchange),),
        "recompute": (_recompute(row, recipe),),
        "virtual_pipeline": _virtual_stages(row, source),
        "micro_batch_size": _micro_batches(row, attention),
    }
    if not layout["micro_batch_size"]:
        return "no micro-batch divides the printed global batch"
    # As the stack runs by itself, but where a row says otherwise.
    kernels = "eager" if framework == "fsdp2" and row["notes"].startswith("eager") else None
    return Case(
        identity=_identity(row, row["micro_batch"], row["global_batch"], row["zero_fsdp_distopt"]),
        table=row["case_id"],
        source=source if PRECISIONS[row["precision"]] != "fp8-mixed" else f"{source}, FP8",
        framework=framework,
        gpu=GPUS[row["gpu"]][0],
        model_name=row["model"],
        model=model,
        hardware=_hardware(row),
        precision=PRECISIONS[row["precision"]],
        attention=attention,
        kernels=kernels,
        sequence_length=int(row["seq"]),
        global_batch_size=int(row["global_batch"]),
        layout=layout,
        recompute_modules=recipe.recompute_modules if recipe else (),
        request=_request(row, _asked_as(framework, source), config, layout, attention, kernels, recipe),
        seconds=_seconds(row, source, model),
        peak_bytes=None,
    )


def nanotron_case(row: Row) -> Case | str:
    """Return a row of nanotron_h100.csv as a case, or why it is none."""
    if row["outcome"] != "ok":
        return "nanotron: did not run to its end"
    if float(row["tok_s_gpu"]) <= 0:
        return "nanotron: no throughput"
    sequences = int(row["dp"]) * int(row["micro_batch"]) * int(row["grad_acc"])
    tokens = sequences * int(row["seq"])
    return Case(
        identity=_identity(row, row["micro_batch"], str(sequences), row["zero_stage"]),
        table=f"{row['model']} on {row['n_gpus']}",
        source="Ultra-Scale sweep",
        framework="nanotron",
        gpu=GPUS[row["gpu"]][0],
        model_name=row["model"],
        model=describe_config(_dense_config(row, gated=True, tied=row["tied_embeddings"] == "1"), name=row["model"]),
        hardware=_hardware(row),
        precision="bf16-mixed",
        attention="flash",
        kernels=None,
        sequence_length=int(row["seq"]),
        global_batch_size=sequences,
        layout={
            "data_parallel": (int(row["dp"]),),
            "tensor_parallel": (int(row["tp"]),),
            "pipeline_parallel": (int(row["pp"]),),
            "zero_stage": (int(row["zero_stage"]),),
            "sequence_parallel": (int(int(row["tp"]) > 1),),
            "micro_batch_size": (int(row["micro_batch"]),),
        },
        request=row_request(nanotron_row(row)),
        seconds=tokens / int(row["n_gpus"]) / float(row["tok_s_gpu"]),
        peak_bytes=float(row["gpu_mem_gb"]) * GIB,
    )


def _problem(row: Row, source: str) -> str | None:
    """Return why a row of train_step.csv is no case, or None."""
    if not source:
        return "unknown source"
    if source == "Ultra-Scale table":
        return "stands among nanotron's own rows"
    if not row["layers"]:
        return "the model's dimensions are not printed"
    if row["precision"] not in PRECISIONS:
        return "FP4: not planned"
    if row["task"] != "pretrain":
        return "fine-tuning: sequence packing not printed"
    if not row["global_batch"]:
        return "global batch not printed"
    return None


def _identity(row: Row, micro_batch: str, sequences: str, zero: str) -> str:
    keys = ("layers", "hidden", "ffn", "seq", "n_gpus", "tp", "pp")
    return "|".join((row["gpu"], *(row[key] for key in keys), row.get("cp") or "1", micro_batch, sequences, zero))


def _predates_flash(source: str) -> bool:
    return source in (
        "Megatron SC'21 table 1",
        "Megatron, January 2021",
        "Megatron SC'21 table 2",
        "MT-NLG 530B",
        "selective recompute table 5",
        "vTrain",
    )


def _surely_sequence_parallel(row: Row) -> bool:
    """Megatron on H100 and later sets sequence parallelism wherever tensor parallelism is on."""
    return int(row["tp"] or 1) > 1 and not row["sequence_parallel"] and "A100" not in row["gpu"]


def _recompute(row: Row, recipe: Recipe | None) -> int:
    if recipe is not None:
        return 1 if recipe.recompute_modules else 0
    word = row["recompute"]
    return 2 if word == "full" else 1 if word.startswith("selective") else 0


def _virtual_stages(row: Row, source: str) -> tuple[int, ...]:
    if row["vpp"]:
        return (int(row["vpp"]),)
    pipeline, layers = int(row["pp"] or 1), int(row["layers"])
    if pipeline == 1 or source in ("MT-NLG 530B", "vTrain"):
        return (1,)
    if source == "Llama 3 table 4":
        # Interleaved over 16 stages of 8 layers, the first and the last with 7 (section 3.3.2).
        return (8,)
    return tuple(count for count in (1, 2, 3, 4, 5) if layers % (pipeline * count) == 0) or (1,)


def _micro_batches(row: Row, attention: str) -> tuple[int, ...]:
    if "local batch" in row["notes"]:
        # torchtitan cuts a rank's local batch into micro-batches of one for its pipeline.
        return (1,)
    if row["micro_batch"]:
        return (int(row["micro_batch"]),)
    if attention == "eager" and int(row["pp"]) >= DEEP_PIPELINE:
        # Megatron's authors print 1 for every such model in their second table and in the paper after it.
        return (1,)
    share = int(row["global_batch"]) // int(row["dp"] or 1)
    return tuple(size for size in (1, 2, 4, 8) if share % size == 0)


def _asked_as(framework: str, source: str) -> str:
    """Return the stack by the name that its runs are asked by: NeMo's and Megatron-Bridge's are timed as Megatron's."""
    is_bridge = framework == "megatron" and source.startswith(("Megatron-Bridge", "NeMo"))
    return "megatron-bridge" if is_bridge else framework


def _request(
    row: Row,
    framework: str,
    config: Mapping[str, Any],
    layout: Mapping[str, tuple[int, ...]],
    attention: str,
    kernels: str | None,
    recipe: Recipe | None,
) -> dict[str, Any]:
    """Return the body of a row's request: of a choice that the source left open it says nothing."""
    gpu, override = GPUS[row["gpu"]]
    fixed: dict[str, Any] = {name: values[0] for name, values in layout.items() if len(values) == 1}
    training = {
        "precision": PRECISIONS[row["precision"]],
        "attention": attention,
        "sequence_length": int(row["seq"]),
        "global_batch_size": int(row["global_batch"]),
    }
    recompute = RECOMPUTE_MODES[fixed.pop("recompute")]
    hides_exchange = bool(fixed.pop("expert_overlap"))
    if row["recompute"]:
        # Who printed what was computed again would have printed what was sent away in its place.
        training |= {"recompute": recompute, "activation_offload": False}
    if recipe is not None:
        training["recompute"] = {"modules": list(recipe.recompute_modules)} if recipe.recompute_modules else "none"
        training |= {} if recipe.offloads_layers else {"activation_offload": False}
    if "micro_batch_size" in fixed:
        training["micro_batch_size"] = fixed.pop("micro_batch_size")
    if kernels is not None:
        training["kernels"] = kernels
    if _divides_evenly(row, fixed):
        # As its stack does by itself. Who divided layers that do not come out even did not print how.
        fixed["pipeline_layout"] = own_way(load_profile(framework).can.pipeline_layouts)
    return {
        "model": {"config": dict(config)},
        "hardware": {"gpu": gpu, "gpus": int(row["n_gpus"]), **({"override": dict(override)} if override else {})},
        "training": training,
        "layout": {
            **fixed,
            "sequence_parallel": bool(fixed["sequence_parallel"]),
            "shard_group": fixed["data_parallel"],
            "offload": "none",
            # Who hides the exchange with experts says so.
            "overlap": {"expert_parallel": hides_exchange},
        },
        "framework": framework,
        **stated_version(row),
    }


def _divides_evenly(row: Row, fixed: Mapping[str, int]) -> bool:
    chunks = fixed["pipeline_parallel"] * fixed.get("virtual_pipeline", 1)
    return fixed["pipeline_parallel"] > 1 and int(row["layers"]) % chunks == 0


def _dense_config(row: Row, *, gated: bool, tied: bool) -> dict[str, Any]:
    sizes = [int(row[key]) for key in ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab")]
    hidden, layers, heads, key_value_heads, feed_forward, vocabulary = sizes
    if gated:
        return {
            "model_type": "llama",
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": key_value_heads,
            "intermediate_size": feed_forward,
            "vocab_size": vocabulary,
            "tie_word_embeddings": tied,
        }
    return {
        "model_type": "gpt2",
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "n_inner": feed_forward,
        "n_positions": int(row["seq"]),
        "vocab_size": vocabulary,
    }


def _mixture_config(row: Row) -> dict[str, Any]:
    """Return the config of the published model of experts, cut to the layers of the row."""
    name = next(known for start, known in MIXTURES.items() if row["model"].startswith(start))
    config = {**catalogue().model(name).config, "num_hidden_layers": int(row["layers"])}
    dense = re.search(r"dense(\d+)", row["moe"])
    if dense and "first_k_dense_replace" in config:
        config["first_k_dense_replace"] = min(int(dense[1]), int(row["layers"]) - 1)
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][: int(row["layers"])]
    return config


def _hardware(row: Row) -> Hardware:
    name, changes = GPUS[row["gpu"]]
    listed = catalogue().gpu(name)
    network = changes.get("nic_bytes_per_second", listed.nic_bytes_per_second)
    gpu = dataclasses.replace(listed, nic_bytes_per_second=network)
    count = int(row["n_gpus"])
    return Hardware(gpu=gpu, gpus=GpuCount(minimum=count, maximum=count), gpus_per_node=gpu.gpus_per_node)


def _seconds(row: Row, source: str, model: ModelSpec) -> float:
    """Return the seconds of a step that a published rate means, by each source's own count of operations."""
    value, unit = float(row["value"]), row["unit"]
    sequences, gpus, length = int(row["global_batch"]), int(row["n_gpus"]), int(row["seq"])
    if unit == "step_seconds":
        return value
    if unit == "tokens/s/GPU":
        return sequences * length / value / gpus
    hidden, layers, vocabulary = int(row["hidden"]), int(row["layers"]), int(row["vocab"])
    if unit == "hardware_TFLOP/s/GPU":
        # Narayanan et al. 2021, section 5.1: 96·B·s·l·h²·(1 + s/6h + V/16lh), recompute counted.
        share = 1 + length / (6 * hidden) + vocabulary / (16 * layers * hidden)
        flops = 96.0 * sequences * length * layers * hidden**2 * share
    elif source == "Llama 3 table 4":
        # 6·N a token, as the paper counts its budget (3.8e25 for 15.6e12 tokens), and causal attention.
        flops = 3.0 * sequences * length * model.forward_flops_per_token((length + 1) / 2)
    else:
        # Megatron-LM counts the whole square of attention.
        flops = 3.0 * sequences * length * model.forward_flops_per_token(length)
    return flops / (value * 1e12) / gpus
