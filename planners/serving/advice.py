"""What would help: changes to a serving question, each planned before it is offered."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planners.architecture import KvKind
from planners.errors import PlanningStopped, PlimsollError
from planners.hardware import GpuCount
from planners.questions import ServingQuestion
from planners.serving.answer import ServingAdvice
from planners.serving.candidates import Candidate
from planners.serving.kv_formats import KV_FORMATS
from planners.serving.pools import holds
from planners.serving.replica import Replica
from planners.serving.settings import Settings, longest_positions
from planners.serving.weight_format import WEIGHT_FORMATS

# A shorter context is offered in whole steps of this many tokens, as people set it.
CONTEXT_STEP_TOKENS = 1024
# Utilization is offered in whole percent.
PERCENT = 100
# More GPUs are offered in doublings, as machines come.
GPU_FACTORS = (2, 4, 8, 16, 32)
FP8 = "fp8"

Planner = Callable[[ServingQuestion], Candidate]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A changed question, the fields that changed, and why it helps.

    Where the search chose the degrees anew, the offer names those it found. Of
    the changes of one `kind` only the first that helps is offered, and none where one of `unless` was.
    """

    kind: str
    fields: Mapping[str, Any]
    question: ServingQuestion
    reason: str
    is_searched: bool = False
    unless: frozenset[str] = frozenset()


def serving_advice(
    question: ServingQuestion, settings: Settings, best: Candidate, plan: Planner
) -> Iterator[ServingAdvice]:
    """Yield the changes that improve on `best`, each planned by `plan`; none if nothing is lacking.

    Raises `PlanningStopped` where `plan` does.
    """
    if best.is_satisfying and best.replica.verdict == "fits":
        return
    offered: set[str] = set()
    for change in _changes(question, settings, best):
        if offered & {change.kind, *change.unless}:
            continue
        try:
            changed = plan(change.question)
        except PlanningStopped:
            raise
        except PlimsollError:
            # The change asks for something this model or engine cannot do: not an offer.
            continue
        if _is_better(changed, best):
            offered.add(change.kind)
            yield _advice(change, changed)


def _advice(change: Change, changed: Candidate) -> ServingAdvice:
    kv = changed.replica.kv
    return ServingAdvice(
        change={**change.fields, **(_degrees(changed) if change.is_searched else {})},
        fits=changed.replica.fits,
        kv_tokens=kv.tokens,
        max_concurrency=kv.max_concurrency,
        peak_bytes=changed.replica.memory.peak_bytes,
        reason=change.reason,
    )


def _degrees(found: Candidate) -> dict[str, int]:
    """Return the degrees that a search found, by their fields; those of mixtures only where they divide."""
    degrees = found.replica.degrees
    of_mixtures = {
        "layout.attention_data_parallel": degrees.attention_data_parallel,
        "layout.expert_parallel": degrees.expert_parallel,
    }
    return {
        "layout.tensor_parallel": degrees.tensor_parallel,
        "layout.pipeline_parallel": degrees.pipeline_parallel,
        "layout.data_parallel": found.replicas,
        **{name: degree for name, degree in of_mixtures.items() if degree > 1},
    }


def _is_better(changed: Candidate, best: Candidate) -> bool:
    """Return whether the change repairs what was lacking."""
    if not changed.replica.fits:
        return False
    if not best.replica.fits:
        return True
    repairs_concurrency = best.meets_concurrency is False and changed.meets_concurrency is not False
    repairs_slo = best.meets_slo is False and changed.meets_slo is not False
    repairs_verdict = best.replica.verdict != "fits" and changed.replica.verdict == "fits"
    return repairs_concurrency or repairs_slo or repairs_verdict


def _changes(question: ServingQuestion, settings: Settings, best: Candidate) -> Iterator[Change]:
    """Yield changes in the order in which engineers try them: 8 bits, less to hold, more GPUs, and at last 4 bits."""
    yield from _utilization(question, best)
    yield from _eight_bits(question, settings)
    yield from _shorter(question, settings, best.replica)
    yield from _fewer_sequences(question, settings, best.replica)
    yield from _more_gpus(question, settings)
    yield from _four_bits(question, settings)


def _utilization(question: ServingQuestion, best: Candidate) -> Iterator[Change]:
    memory, gpu = best.replica.memory, question.hardware.gpu
    if best.replica.keeps_limit:
        return
    outside = memory.claimed_bytes - memory.requested_bytes
    value = int((memory.limit_bytes - outside) * PERCENT / gpu.memory_bytes) / PERCENT
    if value > 0:
        yield Change(
            kind="utilization",
            fields={"serving.gpu_memory_utilization": value},
            question=dataclasses.replace(question, gpu_memory_utilization=value),
            reason="The engine claims a share of the whole GPU, and less than that is free.",
        )


def _eight_bits(question: ServingQuestion, settings: Settings) -> Iterator[Change]:
    """Offer weights in fp8, a cache in fp8, and both where neither helps alone."""
    eight = {}
    if _is_wider(settings, FP8):
        eight["serving.weights"] = FP8
        yield Change(
            kind="weights",
            fields=dict(eight),
            question=dataclasses.replace(question, weights=FP8),
            reason="Weights in fp8 (from an fp8 checkpoint, or quantized while loading) take half the memory.",
        )
    if settings.kv.bits_per_element <= KV_FORMATS[FP8].bits_per_element:
        return
    yield Change(
        kind="kv_cache",
        fields={"serving.kv_cache": FP8},
        question=dataclasses.replace(question, kv_cache=FP8),
        reason="A cache in fp8 holds twice the tokens.",
    )
    if eight:
        yield Change(
            kind="both",
            fields={**eight, "serving.kv_cache": FP8},
            question=dataclasses.replace(question, weights=FP8, kv_cache=FP8),
            reason="Weights and cache in fp8 take half the memory.",
            unless=frozenset({"weights", "kv_cache"}),
        )


def _four_bits(question: ServingQuestion, settings: Settings) -> Iterator[Change]:
    """Offer weights in 4 bits; the engines serve such checkpoints, transformers quantizes while it loads."""
    name = "nf4" if question.engine == "transformers" else "int4"
    if _is_wider(settings, name):
        told = "quantized while loading" if name == "nf4" else "from an AWQ or GPTQ checkpoint"
        yield Change(
            kind="four_bits",
            fields={"serving.weights": name},
            question=dataclasses.replace(question, weights=name),
            reason=f"Weights in 4 bits ({told}) take a quarter of the memory of 16 bits; answers may get worse.",
        )


def _is_wider(settings: Settings, weights: str) -> bool:
    return WEIGHT_FORMATS[weights].element_bits < settings.weights.element_bits


def _shorter(question: ServingQuestion, settings: Settings, replica: Replica) -> Iterator[Change]:
    if replica.fits or not replica.keeps_limit:
        return
    length = min(settings.max_model_len, longest_context(question, settings, replica))
    if length >= CONTEXT_STEP_TOKENS:
        length -= length % CONTEXT_STEP_TOKENS
    if settings.request_tokens <= length < settings.max_model_len:
        yield Change(
            kind="max_model_len",
            fields={"serving.max_model_len": length},
            question=dataclasses.replace(question, max_model_len=length),
            reason="This is the longest context of which one request fits the cache.",
        )


def _fewer_sequences(question: ServingQuestion, settings: Settings, replica: Replica) -> Iterator[Change]:
    """Offer ever smaller batches where their recurrent states, allocated at the start, leave no room."""
    if replica.fits or not any(bucket.state.kind is KvKind.RECURRENT for bucket in replica.cache.buckets):
        return
    sequences = settings.max_num_seqs // 2
    while sequences:
        yield Change(
            kind="max_num_seqs",
            fields={"serving.max_num_seqs": sequences},
            question=dataclasses.replace(question, max_num_seqs=sequences),
            reason="A smaller batch has fewer recurrent states, which leaves room for the cache.",
        )
        sequences //= 2


def longest_context(question: ServingQuestion, settings: Settings, replica: Replica) -> int:
    """Return the most tokens of one request that the replica's blocks hold, 0 if none, up to the model's limit."""
    cache = replica.cache
    usable = cache.usable(replica.pools)
    low, high = 0, longest_positions(question) or settings.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(usable, cache.set_aside(middle)) else (low, middle - 1)
    return low


def _more_gpus(question: ServingQuestion, settings: Settings) -> Iterator[Change]:
    """Offer another layout of the same GPUs, then 2 to 32 times as many, the degrees left to the search.

    Weights in fp8 are offered beside more GPUs where they do not help alone and fewer GPUs suffice for them.
    """
    gpus = question.hardware.gpus
    if gpus.is_free:
        return
    layout = dataclasses.replace(question.layout, tensor_parallel=None, pipeline_parallel=None, data_parallel=None)
    if question.layout.tensor_parallel is not None or question.layout.pipeline_parallel is not None:
        yield Change(
            kind="layout",
            fields={},
            question=dataclasses.replace(question, layout=layout),
            reason="Another layout of the same GPUs fits better.",
            is_searched=True,
        )
    for factor in GPU_FACTORS:
        count = gpus.maximum * factor
        hardware = dataclasses.replace(question.hardware, gpus=GpuCount(minimum=count, maximum=count))
        larger = dataclasses.replace(question, hardware=hardware, layout=layout)
        yield Change(
            kind="gpus",
            fields={"hardware.gpus": count},
            question=larger,
            reason=f"With {count} GPUs each holds less of the weights, which leaves room for more requests.",
            is_searched=True,
        )
        if _is_wider(settings, FP8):
            yield Change(
                kind="gpus_and_weights",
                fields={"hardware.gpus": count, "serving.weights": FP8},
                question=dataclasses.replace(larger, weights=FP8),
                reason=f"Weights in fp8 take half the memory, so {count} GPUs are enough.",
                is_searched=True,
                unless=frozenset({"weights", "both", "gpus"}),
            )
