"""One planned workload's judgement: whether it fits, in numbers, with the way out."""

from __future__ import annotations

from plimsoll.planners.ground.units import GIB
from plimsoll.planners.memory.host_words import is_host_sure
from plimsoll.planners.plans import TrainingAnswer
from plimsoll.planners.serving.answer import KvCache, ServingAnswer
from plimsoll.service.admission.findings import Finding, Share
from plimsoll.service.admission.ways_out import (
    GPUS,
    WEIGHTS,
    flags_of,
    format_names,
    possible_changes,
    serving_ways_out,
    training_ways_out,
)
from plimsoll.service.engines.engine import engines

HOST_MEMORY = "hardware.host_memory_bytes"


def is_certain_for_serving(
    engine: str, max_concurrency: float, available_bytes: int, available_high_bytes: int
) -> bool:
    """Return whether the engine does not start even with the most that may be left for the cache."""
    if not engines()[engine].shortens_requests and max_concurrency > 0 and available_bytes > 0:
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
        text = f"{program} fits: it shortens requests by itself, to some {tokens:,} of {length:,} tokens."
        return Finding(weight="fits", text=text, share=share)
    weights = f"{plan.memory.items.weights / GIB:.1f} GiB of weights"
    if kv.max_concurrency > 0 and kv.available_bytes > 0:
        needed = kv.available_bytes / kv.max_concurrency
        numbers = (
            f"one request of {length:,} tokens needs {needed / GIB:.1f} GiB of KV cache per GPU, "
            f"{kv.available_bytes / GIB:.1f} GiB are left after {weights}"
        )
    else:
        held = plan.memory.peak_bytes / GIB
        limit = f"{plan.memory.limit_bytes / GIB:.1f} GiB"
        room = f"the GPU has {limit}"
        if plan.memory.peak_bytes <= plan.memory.limit_bytes:
            room = f"the engine may take {plan.settings.gpu_memory_utilization:.0%} of the GPU's {limit}"
        numbers = (
            f"{held:.1f} GiB per GPU, {weights} among them, are needed before any KV cache, and {room}"
            if held
            else f"{weights} and the engine's own memory leave nothing of {limit} per GPU"
        )
    engine = plan.settings.engine
    is_certain = is_certain_for_serving(engine, kv.max_concurrency, kv.available_bytes, kv.available_high_bytes)
    refused = not answer.fits and is_certain
    is_shortened = engines()[engine].shortens_requests and 0 < kv.max_concurrency < 1
    possible = [
        change
        for change in possible_changes(answer)
        if (takes_more_gpus or GPUS not in change) and (quantizes or WEIGHTS not in change)
    ]
    hope = f" {engine} starts, but takes only shorter requests." if is_shortened else _uncertain_cache(kv)
    return Finding(
        weight="refuse" if refused else "warn",
        text=f"{program}: {numbers}{serving_ways_out(possible, flags_of(answer), format_names(answer))}."
        + ("" if refused else hope),
        share=share,
    )


def training_finding(program: str, answer: TrainingAnswer) -> Finding:
    """Return what to say of a training job."""
    memory = answer.plan.memory
    if answer.verdict == "fits":
        return Finding(
            weight="fits",
            text=f"{program} fits: {memory.peak_bytes / GIB:.1f} of {memory.limit_bytes / GIB:.1f} GiB per GPU.",
        )
    ways = training_ways_out([entry for entry in answer.advice if HOST_MEMORY not in entry.change])
    if not is_host_sure(memory) and memory.peak_bytes <= memory.limit_bytes:
        host = f"needs {(memory.node_host_bytes or 0) / GIB:,.1f} GiB of host memory on one node"
        return Finding(weight="warn", text=f"{program} {host}, which not every node with this GPU has{ways}.")
    refused = is_certain_for_training(memory.peak_low_bytes, memory.limit_bytes)
    numbers = (
        f"needs {memory.peak_bytes / GIB:.1f} GiB per GPU in {memory.phase} "
        f"({memory.peak_low_bytes / GIB:.1f} to {memory.peak_high_bytes / GIB:.1f}), and each has "
        f"{memory.limit_bytes / GIB:.1f} GiB"
    )
    return Finding(
        weight="refuse" if refused else "warn",
        text=f"{program} {numbers}{ways}."
        + (
            ""
            if refused
            else f" By the {'estimate' if answer.fits else 'low end'} it fits, by the high end it does not."
        ),
    )


def _uncertain_cache(kv: KvCache) -> str:
    """Return between which sizes the cache may lie, which decides whether the engine starts."""
    low, high = kv.available_low_bytes / GIB, kv.available_high_bytes / GIB
    return (
        f" This is uncertain: between {max(low, 0.0):.1f} and {max(high, 0.0):.1f} GiB may be left, so the engine may "
        "or may not start."
    )
