"""The changes that make a workload fit, as a person types them for its engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from plimsoll.planners.plans import Advice
from plimsoll.planners.serving.answer import ServingAnswer
from plimsoll.planners.serving.releases.profile import engine_profile
from plimsoll.planners.training.advice import ON_NVME, ON_THE_HOST, PLANNED_FOR_SPEED
from plimsoll.service.engines.sglang import launch as sglang
from plimsoll.service.engines.tgi import launch as tgi
from plimsoll.service.engines.vllm.launch import on_loading

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
# By field, what the engine calls our formats.
FormatNames: TypeAlias = Mapping[str, Mapping[str, str]]
REPLICAS, ATTENTION_REPLICAS = "layout.data_parallel", "layout.attention_data_parallel"
GPUS = "hardware.gpus"
MOST_WAYS_OUT = 3
FP8 = "fp8"
WEIGHTS, CACHE = "serving.weights", "serving.kv_cache"
# What an engine calls a cache's format where it is not our name; its launcher knows no other.
CACHE_NAMES: Mapping[str, Mapping[str, str]] = {"sglang": {"fp8": "fp8_e4m3"}}
FRAMEWORK, LAYOUT, ANY = "framework", "layout", "any"
OFFLOAD = "layout.offload"


def flags_of(answer: ServingAnswer) -> Mapping[str, str]:
    """Return what a person types for each of our fields, by the name of the engine."""
    return SERVING_FLAGS[answer.plan.settings.engine]


def format_names(answer: ServingAnswer) -> FormatNames:
    """Return what the engine calls the formats that it quantizes to while loading, and those of its cache, by ours."""
    engine = answer.plan.settings.engine
    loading: Mapping[str, Mapping[str, str]] = {
        "vllm": on_loading(answer.plan.settings.engine_version),
        "sglang": sglang.ON_LOADING,
        "transformers": tgi.ON_LOADING,
    }
    return {WEIGHTS: loading.get(engine, {}), CACHE: CACHE_NAMES.get(engine, {})}


def possible_changes(answer: ServingAnswer) -> Sequence[Mapping[str, Any]]:
    """Return the changes that fit and can be typed: engines quantize to some formats only.

    Where the command has no option for the degrees that were found on more GPUs, their number alone is left; what it
    cannot be told of formats and lengths would be missing then, so such a change is no way out.
    """
    names, flags = format_names(answer), flags_of(answer)
    changes = []
    for change in (entry.change for entry in answer.advice if entry.fits):
        is_typed = all(_is_typed(name, value, flags) for name, value in change.items())
        has_one_name = change.get(REPLICAS, 1) == 1 or change.get(ATTENTION_REPLICAS, 1) == 1
        if change.get(WEIGHTS, FP8) not in (names[WEIGHTS] or (FP8,)) or not _is_loaded(change, answer):
            continue
        if is_typed and has_one_name:
            changes.append(change)
        elif GPUS in change and all(name.startswith("layout.") or name == GPUS for name in change):
            changes.append({GPUS: change[GPUS]})
    return changes


def _is_loaded(change: Mapping[str, Any], answer: ServingAnswer) -> bool:
    """Return whether weights of 16 bits have room where the engine loads all of them before it quantizes any."""
    plan = answer.plan
    settings, memory = plan.settings, plan.memory
    if WEIGHTS not in change or not engine_profile(settings.engine, settings.engine_version).quantizes_after_loading:
        return True
    # More GPUs divide them, at best evenly.
    share = memory.items.weights * plan.layout.gpus / int(change.get(GPUS, plan.layout.gpus))
    return share <= memory.limit_bytes


def _is_typed(name: str, value: Any, flags: Mapping[str, str]) -> bool:
    """Return whether a change is an option of the command, or what stands beside it."""
    return name in flags or not name.startswith(("layout.", "serving.")) or (name.startswith("layout.") and value == 1)


def serving_ways_out(changes: Sequence[Mapping[str, Any]], flags: Mapping[str, str], format_names: FormatNames) -> str:
    """Return the first changes that fit, as a person would type them; what changes the answers' quality comes last."""
    fitting = sorted(changes, key=lambda change: WEIGHTS in change)
    return _joined(_change_text(change, flags, format_names) for change in fitting)


def training_ways_out(advice: Sequence[Advice]) -> str:
    """Return the first offers that fit, with the layout that was planned where the change leaves it open."""
    return _joined(_offer_text(entry) for entry in advice if entry.fits)


def _joined(ways: Iterable[str]) -> str:
    first = list(itertools.islice(ways, MOST_WAYS_OUT))
    return f"; it fits with {' or '.join(first)}" if first else ""


def _offer_text(entry: Advice) -> str:
    change, planned = dict(entry.change), entry.reason.rpartition(PLANNED_FOR_SPEED)[2].rstrip(".")
    framework, layout = change.pop(FRAMEWORK, None), change.pop(LAYOUT, None)
    is_offloaded = ON_THE_HOST in planned or ON_NVME in planned
    is_shown = layout is not None or framework == ANY or (is_offloaded and OFFLOAD not in change)
    said = [_change_text(change, {}, {})] if change else []
    said += [] if layout is None else ["the layout left free"]
    if framework is not None and (framework == ANY or not is_shown):
        # What was planned begins with its framework.
        said.append("another framework" if framework == ANY else f"framework {framework}")
    return " and ".join(said) + (f" ({planned})" if is_shown else "")


def _change_text(change: Mapping[str, Any], flags: Mapping[str, str], format_names: FormatNames) -> str:
    # A degree of one is what a command that does not name it has anyway.
    told = {name: value for name, value in change.items() if not (name.startswith("layout.") and value == 1)}
    values = {
        name: format_names[name].get(value, value) if name in format_names else value
        for name, value in (told or change).items()
    }
    return " and ".join(_typed(name, value, flags) for name, value in values.items())


def _typed(name: str, value: Any, flags: Mapping[str, str]) -> str:
    if name == GPUS:
        return f"{value} GPUs"
    flag = flags.get(name, name.rpartition(".")[2])
    return flag if flag in SWITCHES else f"{flag} {value}"
