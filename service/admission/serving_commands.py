"""Launch commands of serving engines, read as a request to `/plan/infer`.

Sources: vllm/engine/arg_utils.py and vllm/entrypoints/openai/cli_args.py; sglang/srt/server_args.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.admission.flags import Arguments, Flag, read_flags
from service.admission.launches import Launch, NotRead
from service.admission.shell import image_name

VERSION_TAG = re.compile(r"^v?([0-9]+\.[0-9]+)(?:[.-]|$)")
ENGINE_IMAGES = {"vllm/vllm-openai": "vllm", "lmsysorg/sglang": "sglang"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCommand:
    """How one engine is told what `/plan/infer` asks.

    Flags in `unread` take memory that no planner counts; with one of `decisive` the
    command's other flags no longer say what is loaded where.
    """

    engine: str
    flags: tuple[Flag, ...]
    unread: frozenset[str]
    decisive: frozenset[str]
    cache_dtypes: Mapping[str, str | None]


VLLM = EngineCommand(
    engine="vllm",
    flags=(
        Flag(names=("model",), field="model", form="text"),
        Flag(names=("tensor-parallel-size", "tp"), field="tensor_parallel", form="whole"),
        Flag(names=("pipeline-parallel-size", "pp"), field="pipeline_parallel", form="whole"),
        Flag(names=("data-parallel-size", "dp"), field="data_parallel", form="whole"),
        Flag(names=("enable-expert-parallel", "ep"), field="expert_parallel", form="switch"),
        Flag(names=("decode-context-parallel-size", "dcp"), field="decode_context_parallel", form="whole"),
        Flag(names=("max-model-len",), field="max_model_len", form="whole"),
        Flag(names=("gpu-memory-utilization",), field="gpu_memory_utilization", form="number"),
        Flag(names=("max-num-seqs",), field="max_num_seqs", form="whole"),
        Flag(names=("max-num-batched-tokens",), field="max_num_batched_tokens", form="whole"),
        Flag(names=("block-size",), field="block_size", form="whole"),
        Flag(names=("kv-cache-dtype",), field="kv_cache", form="text"),
        Flag(names=("quantization", "q"), field="quantization", form="text"),
        Flag(names=("dtype",), field="dtype", form="text"),
    ),
    unread=frozenset({
        "--speculative-config", "--enable-lora", "--enforce-eager", "--kv-transfer-config",
        "--num-gpu-blocks-override", "--compilation-config",
    }),
    decisive=frozenset({"--config", "--cpu-offload-gb", "--hf-overrides"}),
    cache_dtypes={
        "auto": None, "bfloat16": "bf16", "float16": "fp16", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
    },
)  # fmt: skip
SGLANG = EngineCommand(
    engine="sglang",
    flags=(
        Flag(names=("model-path", "model"), field="model", form="text"),
        Flag(names=("tensor-parallel-size", "tp-size", "tp"), field="tensor_parallel", form="whole"),
        Flag(names=("pipeline-parallel-size", "pp-size", "pp"), field="pipeline_parallel", form="whole"),
        Flag(names=("data-parallel-size", "dp-size", "dp"), field="data_parallel", form="whole"),
        Flag(names=("attention-data-parallel-size", "attn-dp-size"), field="attention_data_parallel", form="whole"),
        Flag(names=("enable-dp-attention",), field="is_attention_data_parallel", form="switch"),
        Flag(names=("expert-parallel-size", "ep-size", "ep"), field="expert_ranks", form="whole"),
        Flag(names=("context-length",), field="max_model_len", form="whole"),
        Flag(names=("mem-fraction-static",), field="gpu_memory_utilization", form="number"),
        Flag(names=("max-running-requests",), field="max_num_seqs", form="whole"),
        Flag(names=("chunked-prefill-size",), field="max_num_batched_tokens", form="whole"),
        Flag(names=("page-size",), field="block_size", form="whole"),
        Flag(names=("kv-cache-dtype",), field="kv_cache", form="text"),
        Flag(names=("quantization",), field="quantization", form="text"),
        Flag(names=("dtype",), field="dtype", form="text"),
    ),
    unread=frozenset({
        "--speculative-algorithm", "--speculative-draft-model-path", "--disaggregation-mode", "--max-total-tokens",
        "--lora-paths",
    }),
    decisive=frozenset({"--config", "--cpu-offload-gb", "--json-model-override-args"}),
    cache_dtypes={"auto": None, "bf16": "bf16", "bfloat16": "bf16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"},
)  # fmt: skip
DTYPES = {
    "auto": None, "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32",
    "float": "fp32",
}  # fmt: skip
# Quantization while loading; the others describe how the checkpoint is stored already.
ON_LOADING = {"fp8": "fp8", "bitsandbytes": "nf4"}
AS_STORED = (
    "awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "modelopt", "modelopt_fp4", "mxfp4", "w8a8_int8",
)  # fmt: skip
LAYOUT_FIELDS = ("tensor_parallel", "pipeline_parallel", "data_parallel", "decode_context_parallel")
SERVING_FIELDS = ("max_model_len", "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "block_size")


def serving_launch(words: tuple[str, ...], image: str) -> Launch | NotRead | None:
    """Return what a command would serve, what of it cannot be read, or None where it serves nothing we know."""
    found = _engine_arguments(words)
    if found is None:
        return None
    command, rest = found
    read = read_flags(rest, command.flags)
    if read.problems:
        return NotRead(reason=f"the {command.engine} command: {'; '.join(read.problems)}")
    model = read.values.get("model") or next(iter(read.positionals), None)
    if not isinstance(model, str):
        return NotRead(reason=f"the {command.engine} command names no model")
    formats = _formats(command, read)
    if isinstance(formats, NotRead):
        return formats
    others = {name.replace("_", "-") for name in read.others}
    for name in sorted(command.decisive & others):
        return NotRead(reason=f"{name} decides what the {command.engine} command loads, and is not read")
    serving = {name: read.values[name] for name in SERVING_FIELDS if name in read.values}
    layout = _layout(read)
    if isinstance(layout, NotRead):
        return layout
    unread = sorted(command.unread & others)
    version = _engine_version(command.engine, image)
    return Launch(
        program=f"{command.engine} serving {model}",
        kind="infer",
        request={
            "model": model,
            "serving": {**serving, **formats, "engine": command.engine, **version},
            "layout": layout,
        },
        notes=tuple(f"{name} changes memory and is not taken into account" for name in unread),
    )  # fmt: skip


def _engine_arguments(words: tuple[str, ...]) -> tuple[EngineCommand, tuple[str, ...]] | None:
    program = words[0].rpartition("/")[2]
    if program == "vllm" and words[1:2] == ("serve",):
        return VLLM, words[2:]
    if program == "sglang" and words[1:2] == ("serve",):
        return SGLANG, words[2:]
    if re.match(r"^python[0-9.]*$", program) and "-m" in words:
        place = words.index("-m")
        module, rest = words[place + 1 : place + 2], words[place + 2 :]
        if module in (("vllm.entrypoints.openai.api_server",), ("vllm.entrypoints.api_server",)):
            return VLLM, rest
        if module == ("sglang.launch_server",):
            return SGLANG, rest
    return None


def _formats(command: EngineCommand, read: Arguments) -> dict[str, Any] | NotRead:
    """Return the formats of weights and cache; absent ones follow the checkpoint."""
    formats: dict[str, Any] = {}
    dtype, quantization = str(read.values.get("dtype", "auto")), read.values.get("quantization")
    cache = str(read.values.get("kv_cache", "auto"))
    if dtype not in DTYPES:
        return NotRead(reason=f"--dtype {dtype[:40]} is no type this service knows")
    if cache not in command.cache_dtypes:
        return NotRead(reason=f"--kv-cache-dtype {cache[:40]} is no format this service knows")
    if quantization is not None and quantization not in (*ON_LOADING, *AS_STORED):
        return NotRead(reason=f"--quantization {str(quantization)[:40]} is no scheme this service knows")
    if quantization in ON_LOADING:
        formats["weights"] = ON_LOADING[str(quantization)]
    elif quantization is None and DTYPES[dtype]:
        formats["weights"] = DTYPES[dtype]
    if command.cache_dtypes[cache]:
        formats["kv_cache"] = command.cache_dtypes[cache]
    return formats


def _layout(read: Arguments) -> dict[str, int] | NotRead:
    """Return the degrees of the command: 1 where it names none.

    SGLang counts the ranks of attention's data parallelism among its tensor ranks.
    vLLM's data parallelism divides attention alone where experts are parallel, over
    all tensor- and data-parallel ranks; else its ranks are replicas.
    """
    named = {name: int(read.values[name]) for name in LAYOUT_FIELDS if name in read.values}
    layout = {"tensor_parallel": 1, "pipeline_parallel": 1, **named}
    attention = int(read.values.get("attention_data_parallel", 1))
    if read.values.get("is_attention_data_parallel"):
        attention = layout.pop("data_parallel", 1)
    if attention > 1:
        if layout["tensor_parallel"] % attention:
            return NotRead(
                reason=f"{attention} data-parallel ranks do not divide {layout['tensor_parallel']} tensor ranks"
            )
        layout |= {"attention_data_parallel": attention, "tensor_parallel": layout["tensor_parallel"] // attention}
    if "expert_ranks" in read.values:
        layout["expert_parallel"] = int(read.values["expert_ranks"])
    if read.values.get("expert_parallel"):
        ranks = layout.pop("data_parallel", 1)
        layout |= {"attention_data_parallel": ranks} if ranks > 1 else {}
        layout["expert_parallel"] = layout["tensor_parallel"] * ranks
    return layout


def _engine_version(engine: str, image: str) -> dict[str, str]:
    """Return the version that an engine's own image carries in its tag, as "0.19"; nothing where it carries none."""
    if ENGINE_IMAGES.get(image_name(image)) != engine:
        return {}
    match = VERSION_TAG.match(image.partition("@")[0].rpartition("/")[2].partition(":")[2])
    return {"engine_version": match[1]} if match else {}
