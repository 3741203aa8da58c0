"""The changes that make a workload fit, as a person types them for its engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planners.serving.answer import ServingAnswer
from service.artifacts import sglang, tgi
from service.artifacts.vllm import on_loading

# What a person types to make the change that an advice names, by engine; TGI serves what is planned for transformers.
# Without an option of that name a change cannot be made on the command line, and is not offered.
SERVING_FLAGS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "layout.tensor_parallel": "--tensor-parallel-size",
        "layout.pipeline_parallel": "--pipeline-parallel-size",
        "layout.data_parallel": "--data-parallel-size",
        # Replicas of a dense model, and of attention alone where experts are parallel, have one name.
        "layout.attention_data_parallel": "--data-parallel-size",
        "layout.expert_parallel": "--enable-expert-parallel",
        "serving.max_model_len": "--max-model-len",
        "serving.gpu_memory_utilization": "--gpu-memory-utilization",
        "serving.kv_cache": "--kv-cache-dtype",
        "serving.weights": "--quantization",
        "serving.max_num_seqs": "--max-num-seqs",
        "serving.max_num_batched_tokens": "--max-num-batched-tokens",
    },
    "sglang": {
        "layout.tensor_parallel": "--tp-size",
        "layout.pipeline_parallel": "--pp-size",
        "layout.data_parallel": "--dp-size",
        "serving.max_model_len": "--context-length",
        "serving.gpu_memory_utilization": "--mem-fraction-static",
        "serving.kv_cache": "--kv-cache-dtype",
        "serving.weights": "--quantization",
        "serving.max_num_seqs": "--max-running-requests",
        "serving.max_num_batched_tokens": "--chunked-prefill-size",
    },
    "tensorrt-llm": {
        "layout.tensor_parallel": "--tp_size",
        "layout.pipeline_parallel": "--pp_size",
        "serving.max_model_len": "--max_seq_len",
        "serving.gpu_memory_utilization": "--free_gpu_memory_fraction",
        "serving.max_num_seqs": "--max_batch_size",
        "serving.max_num_batched_tokens": "--max_num_tokens",
    },
    "transformers": {
        "layout.tensor_parallel": "--num-shard",
        "serving.max_model_len": "--max-total-tokens",
        "serving.gpu_memory_utilization": "--cuda-memory-fraction",
        "serving.weights": "--quantize",
        "serving.max_num_batched_tokens": "--max-batch-prefill-tokens",
    },
}
SWITCHES = frozenset({"--enable-expert-parallel"})
REPLICAS, ATTENTION_REPLICAS = "layout.data_parallel", "layout.attention_data_parallel"
GPUS = "hardware.gpus"
MOST_WAYS_OUT = 3
WEIGHTS = "serving.weights"
FRAMEWORK, LAYOUT, ANY = "framework", "layout", "any"
UNSAID: Mapping[str, str] = {LAYOUT: "the layout left free", FRAMEWORK: "any framework"}


def flags_of(answer: ServingAnswer) -> Mapping[str, str]:
    """Return what a person types for each of our fields, by the name of the engine."""
    return SERVING_FLAGS[answer.plan.settings.engine]


def format_names(answer: ServingAnswer) -> Mapping[str, str]:
    """Return what the engine calls the formats that it quantizes to while loading, by ours."""
    engine = answer.plan.settings.engine
    if engine == "vllm":
        return on_loading(answer.plan.settings.engine_version)
    return {"sglang": sglang.ON_LOADING, "transformers": tgi.ON_LOADING}.get(engine, {})


def possible_changes(answer: ServingAnswer) -> Sequence[Mapping[str, Any]]:
    """Return the changes that fit and can be typed: engines quantize to some formats only.

    Where the command has no option for the degrees that were found on more GPUs, their number alone is left.
    """
    names, flags = format_names(answer), flags_of(answer)
    changes = []
    for change in (entry.change for entry in answer.advice if entry.fits):
        is_typed = all(_is_typed(name, value, flags) for name, value in change.items())
        has_one_name = change.get(REPLICAS, 1) == 1 or change.get(ATTENTION_REPLICAS, 1) == 1
        if change.get(WEIGHTS, "fp8") not in (names or ("fp8",)):
            continue
        if is_typed and has_one_name:
            changes.append(change)
        elif GPUS in change:
            changes.append({GPUS: change[GPUS]})
    return changes


def _is_typed(name: str, value: Any, flags: Mapping[str, str]) -> bool:
    """Return whether a change is an option of the command, or what stands beside it."""
    return name in flags or not name.startswith(("layout.", "serving.")) or (name.startswith("layout.") and value == 1)


def ways_out(changes: Sequence[Mapping[str, Any]], flags: Mapping[str, str], format_names: Mapping[str, str]) -> str:
    """Return the first changes that fit, as a person would type them; what changes the answers' quality comes last."""
    fitting = sorted(changes, key=lambda change: WEIGHTS in change)
    ways = [_change_text(change, flags, format_names) for change in fitting]
    return f"; fits with {' or '.join(ways[:MOST_WAYS_OUT])}" if ways else ""


def _change_text(change: Mapping[str, Any], flags: Mapping[str, str], format_names: Mapping[str, str]) -> str:
    # A degree of one is what a command that does not name it has anyway.
    told = {name: value for name, value in change.items() if not (name.startswith("layout.") and value == 1)}
    if told == {"layout": {}}:
        return "the layout left free"
    if FRAMEWORK in told or LAYOUT in told:
        # A way out of a planning request: a command says both by being another one.
        free = [UNSAID[name] for name in (LAYOUT, FRAMEWORK) if told.get(name) in ({}, ANY)]
        said = {name: value for name, value in told.items() if name not in (LAYOUT, FRAMEWORK)}
        return " and ".join([*([_change_text(said, flags, format_names)] if said else []), *free])
    values = {
        name: format_names.get(value, value) if name == WEIGHTS else value for name, value in (told or change).items()
    }
    return " and ".join(_typed(name, value, flags) for name, value in values.items())


def _typed(name: str, value: Any, flags: Mapping[str, str]) -> str:
    if name == GPUS:
        return f"{value} GPUs"
    flag = flags.get(name, name.rpartition(".")[2])
    return flag if flag in SWITCHES else f"{flag} {value}"
