"""One workload's judgement: what is known of it, planned, and put in words with the way out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from planners.host_words import is_host_sure
from planners.plans import TrainingAnswer
from planners.serving.answer import ServingAnswer
from service.artifacts import sglang, tgi
from service.artifacts.vllm import on_loading

GIB = 2**30
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
# These start with less cache than one request of the longest may fill, and take shorter ones: sglang,
# srt/managers/tp_worker.py (`max_req_len`); tensorrt_llm, _torch/pyexecutor/resource_manager.py
# (`clamp_max_seq_len_for_mem`). vLLM does not start (`check_enough_kv_cache_memory`).
SHORTENING_ENGINES = frozenset({"sglang", "tensorrt-llm"})
SWITCHES = frozenset({"--enable-expert-parallel"})
REPLICAS, ATTENTION_REPLICAS = "layout.data_parallel", "layout.attention_data_parallel"
GPUS = "hardware.gpus"
HOST_MEMORY = "hardware.host_memory_bytes"
MOST_WAYS_OUT = 3
WEIGHTS = "serving.weights"
FRAMEWORK, LAYOUT, ANY = "framework", "layout", "any"
UNSAID: Mapping[str, str] = {LAYOUT: "the layout left free", FRAMEWORK: "any framework"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one engine takes of one GPU: its weights, and the fraction of the card that it makes its own."""

    program: str
    engine: str
    fraction: float
    weight_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`refuse` where even the low end of the error bar does not fit, `warn` where only the high end does not.

    `unjudged` where something is missing, and the text says what.
    """

    weight: Literal["refuse", "warn", "fits", "unjudged"]
    text: str
    share: Share | None = None


def softened(finding: Finding, reason: str) -> Finding:
    """Return a refusal as a warning that says why it is none; any other finding as it is."""
    return replace(finding, weight="warn", text=f"{finding.text} {reason}") if finding.weight == "refuse" else finding


def noted(finding: Finding, note: str) -> Finding:
    """Return a finding of something that does not fit with a sentence more; any other as it is."""
    return replace(finding, text=f"{finding.text} {note}") if finding.weight in ("refuse", "warn") else finding


def is_certain_for_serving(
    engine: str, max_concurrency: float, available_bytes: int, available_high_bytes: int
) -> bool:
    """Return whether the engine does not start even with the most that may be left for the cache."""
    if engine not in SHORTENING_ENGINES and max_concurrency > 0 and available_bytes > 0:
        return max_concurrency * available_high_bytes / available_bytes < 1
    return available_high_bytes <= 0


def is_certain_for_training(peak_low_bytes: int, limit_bytes: int) -> bool:
    """Return whether even the low end of the error bar lies above what the GPU offers."""
    return peak_low_bytes > limit_bytes


def serving_finding(
    program: str,
    answer: ServingAnswer,
    *,
    shortens: bool = False,
    takes_more_gpus: bool = True,
    quantizes: bool = True,
) -> Finding:
    """Return what to say of a serving deployment; one that `shortens` is told to take what length fits.

    Slices of a card cannot be put together: more of them are no way out. Nor is another
    format of a checkpoint that is quantized already (vllm, config/model.py, _verify_quantization).
    """
    plan = answer.plan
    kv, length = plan.kv, plan.settings.max_model_len
    share = Share(
        program=program,
        engine=plan.settings.engine,
        fraction=plan.settings.gpu_memory_utilization,
        weight_bytes=plan.memory.items.weights,
        memory_bytes=plan.memory.limit_bytes,
    )
    if answer.verdict == "fits":
        text = f"{program} fits: {kv.max_concurrency:.1f} requests of {length:,} tokens."
        return Finding(weight="fits", text=text, share=share)
    if shortens and kv.available_bytes > 0 and 0 < kv.max_concurrency < 1:
        tokens = int(length * kv.max_concurrency)
        text = f"{program} fits: it finds some {tokens:,} tokens a request by itself, of {length:,}."
        return Finding(weight="fits", text=text, share=share)
    weights = f"{plan.memory.items.weights / GIB:.1f} GiB of weights"
    if kv.max_concurrency > 0 and kv.available_bytes > 0:
        needed = kv.available_bytes / kv.max_concurrency
        numbers = (
            f"one request of {length:,} tokens needs {needed / GIB:.1f} GiB of KV cache a GPU, "
            f"{kv.available_bytes / GIB:.1f} GiB are left after {weights}"
        )
    else:
        held = plan.memory.peak_bytes / GIB
        numbers = (
            f"{weights} and the engine's own memory leave nothing of {plan.memory.limit_bytes / GIB:.1f} GiB a GPU"
        )
        numbers += f" for the KV cache ({held:.1f} GiB are held without it)" if held else ""
    engine = plan.settings.engine
    is_certain = is_certain_for_serving(engine, kv.max_concurrency, kv.available_bytes, kv.available_high_bytes)
    refused = not answer.fits and is_certain
    is_shortened = engine in SHORTENING_ENGINES and 0 < kv.max_concurrency < 1
    possible = [
        change
        for change in _possible(answer)
        if (takes_more_gpus or GPUS not in change) and (quantizes or WEIGHTS not in change)
    ]
    hope = f" {engine} starts, and takes shorter requests only." if is_shortened else " It may just fit."
    return Finding(
        weight="refuse" if refused else "warn",
        text=f"{program}: {numbers}{_ways_out(possible, _flags(answer), _format_names(answer))}."
        + ("" if refused else hope),
        share=share,
    )


def training_finding(program: str, answer: TrainingAnswer) -> Finding:
    """Return what to say of a training job."""
    memory = answer.plan.memory
    if answer.verdict == "fits":
        return Finding(
            weight="fits",
            text=f"{program} fits: {memory.peak_bytes / GIB:.1f} of {memory.limit_bytes / GIB:.1f} GiB a GPU.",
        )
    changes = [entry.change for entry in answer.advice if entry.fits and HOST_MEMORY not in entry.change]
    if not is_host_sure(memory) and memory.peak_bytes <= memory.limit_bytes:
        host = f"needs {(memory.node_host_bytes or 0) / GIB:,.1f} GiB of host memory on one node"
        return Finding(
            weight="warn", text=f"{program} {host}, which not every node with this GPU has{_ways_out(changes, {}, {})}."
        )
    refused = is_certain_for_training(memory.peak_low_bytes, memory.limit_bytes)
    numbers = (
        f"needs {memory.peak_bytes / GIB:.1f} GiB a GPU in {memory.phase} "
        f"({memory.peak_low_bytes / GIB:.1f} to {memory.peak_high_bytes / GIB:.1f}), "
        f"{memory.limit_bytes / GIB:.1f} GiB are there"
    )
    return Finding(
        weight="refuse" if refused else "warn",
        text=f"{program} {numbers}{_ways_out(changes, {}, {})}." + ("" if refused else " It may just fit."),
    )


def _flags(answer: ServingAnswer) -> Mapping[str, str]:
    return SERVING_FLAGS[answer.plan.settings.engine]


def _format_names(answer: ServingAnswer) -> Mapping[str, str]:
    """Return what the engine calls the formats that it quantizes to while loading, by ours."""
    engine = answer.plan.settings.engine
    if engine == "vllm":
        return on_loading(answer.plan.settings.engine_version)
    return {"sglang": sglang.ON_LOADING, "transformers": tgi.ON_LOADING}.get(engine, {})


def _possible(answer: ServingAnswer) -> Sequence[Mapping[str, Any]]:
    """Return the changes that fit and can be typed: engines quantize to some formats only.

    Where the command has no option for the degrees that were found on more GPUs, their number alone is left.
    """
    names, flags = _format_names(answer), _flags(answer)
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


def _ways_out(changes: Sequence[Mapping[str, Any]], flags: Mapping[str, str], format_names: Mapping[str, str]) -> str:
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
