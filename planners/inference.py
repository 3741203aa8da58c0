"""The front door of the serving planner: a question in, a deployment with its cache and its speed out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from planners.plans import SearchCounts
from planners.questions import ServingQuestion
from planners.serving.advice import longest_context, serving_advice
from planners.serving.answer import (
    EngineSettings,
    KvCache,
    Performance,
    ServingAlternative,
    ServingAnswer,
    ServingFleetEntry,
    ServingLayout,
    ServingPlan,
)
from planners.serving.candidates import Candidate
from planners.serving.degrees import Degrees
from planners.serving.disaggregation import DisaggregatedDeployment
from planners.serving.engine import GIB, MemoryRule
from planners.serving.front import Point, pareto_front, point_of
from planners.serving.learned import Learned, Ranks
from planners.serving.search import Found, search_fleet, search_layouts
from planners.serving.settings import Settings, resolve_settings, stated_scaling
from planners.stopping import ShouldStop, never, until_stopped

MOST_ALTERNATIVES = 5
MILLION = 10**6
LOGGED_GPU = "h100"
# The latencies' measurements are of weights in 16 and 8 bits.
FEWEST_TIMED_BITS = 8
RATE_NOTE = (
    "Requests come at random (Poisson): prompts wait for one another as in M/D/1 and for a place as in M/M/c; the "
    "99th percentiles add both waits."
)
OUTRUN_NOTE = "The requests outrun the replicas: performance is what those deliver when full."
POOLS_NOTE = (
    "Prefilling and decoding replicas are alike; a prompt's cache crosses once, at the link's own rate. No measured "
    "run of such a deployment was fitted: the bands are those of replicas that do both."
)
DRAFT_NOTE = (
    "Tokens are drafted by one layer of the model's size (multi-token prediction, EAGLE); the drafter's own weights "
    "and cache are not counted. The launch files name no drafter: started as they are, the engine drafts nothing."
)
FITTED_ON = (
    "Latencies are a roofline whose weights were fitted on public runs of eight models on H100, H200, B200 and B300, "
    "for each engine; other cards take them at their own rates. The low and high ends hold nine of ten of these runs, "
    "each with its model left out; the form of the fit was chosen on the same runs, so a new model may lie further off."
)


def plan_serving(
    question: ServingQuestion, should_stop: ShouldStop = never, stop_advising: ShouldStop | None = None
) -> ServingAnswer:
    """Return the best deployment for the question, or the closest where none fits.

    With `stop_advising` that is asked in place of `should_stop` while advice is sought, and what was found until then
    is the advice. Raises `InvalidQuestion` and `ImpossibleLayout` with the field for a question
    that makes no sense, `NotYetAvailable` for one this version does not answer,
    and `PlanningStopped` once `should_stop`, asked many times a second, says so.
    """
    return plan_serving_fleet((question,), should_stop, stop_advising).answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFleetAnswer:
    """The answer on the best entry, `chosen`, every entry under its `fleet` where there are several."""

    chosen: int
    answer: ServingAnswer


def plan_serving_fleet(
    questions: Sequence[ServingQuestion], should_stop: ShouldStop = never, stop_advising: ShouldStop | None = None
) -> ServingFleetAnswer:
    """Return the best deployment over several kinds of GPUs; the questions differ in these alone.

    An entry that cannot serve the model is listed with its refusal. Raises what
    `plan_serving` raises on the first entry where none can.
    """
    found = search_fleet(questions, should_stop)
    best = found.candidates[0]
    question, settings = best.question, best.settings
    advice = serving_advice(question, settings, best, functools.partial(_best_candidate, stop_advising or should_stop))
    answer = ServingAnswer(
        fits=best.replica.fits,
        verdict=best.replica.verdict,
        meets_concurrency=best.meets_concurrency,
        meets_slo=best.meets_slo,
        summary=_summary(question, settings, best),
        plan=_plan(question, settings, best),
        alternatives=_alternatives(found.candidates),
        search=SearchCounts(
            layouts_considered=found.considered,
            layouts_excluded=found.excluded,
            layouts_fitting=len({id(other.replica) for other in found.candidates if other.replica.fits}),
        ),
        advice=tuple(advice if stop_advising is None else until_stopped(advice)),
        assumptions=(
            *question.model.assumptions,
            *question.hardware.gpu.assumptions,
            *_assumptions(question, settings, best),
        ),
        fleet=_fleet(found) if len(questions) > 1 else (),
    )
    return ServingFleetAnswer(chosen=best.entry, answer=answer)


def _best_candidate(should_stop: ShouldStop, question: ServingQuestion) -> Candidate:
    return search_layouts(question, resolve_settings(question), should_stop).candidates[0]


def _alternatives(candidates: Sequence[Candidate]) -> tuple[ServingAlternative, ...]:
    """Return the Pareto front from the fastest to the cheapest, and then the next best that do not lie on it.

    The plan itself is not repeated.
    """
    if len(candidates) == 1:
        return ()
    best = candidates[0]
    front = [
        point
        for point in pareto_front(candidates)
        if point.candidate is not best or point.concurrency != best.concurrency
    ]
    on_front = {id(point.candidate) for point in front}
    others = [other for other in candidates[1:] if other.replica.fits and id(other) not in on_front]
    return (
        *(_alternative(point.candidate, point, is_on_front=True) for point in front),
        *(_alternative(other, point_of(other), is_on_front=False) for other in others[:MOST_ALTERNATIVES]),
    )


def _fleet(found: Found) -> tuple[ServingFleetEntry, ...]:
    """Return the best of every entry, best first, and then those that were refused."""
    best: dict[int, Candidate] = {}
    for candidate in found.candidates:
        best.setdefault(candidate.entry, candidate)
    entries = [_fleet_entry(candidate) for candidate in best.values()]
    refused = [
        ServingFleetEntry(entry=refusal.entry, gpu=refusal.gpu, fits=False, verdict="no", refusal=refusal.error.detail)
        for refusal in found.refusals
    ]
    return (*entries, *refused)


def _fleet_entry(candidate: Candidate) -> ServingFleetEntry:
    state = candidate.state
    return ServingFleetEntry(
        entry=candidate.entry,
        gpu=candidate.question.hardware.gpu.id,
        fits=candidate.replica.fits,
        verdict=candidate.replica.verdict,
        gpus=candidate.gpus,
        layout=_layout(candidate),
        weights=candidate.settings.weights.name,
        kv_cache=candidate.settings.kv.name,
        kv_tokens=candidate.replica.kv.tokens,
        meets_concurrency=candidate.meets_concurrency,
        meets_slo=candidate.meets_slo,
        ttft_seconds=None if state is None else state.ttft_seconds,
        tpot_seconds=None if state is None else state.tpot_seconds,
        output_tokens_per_second=None if state is None else candidate.output_tokens_per_second,
        cost_usd_per_million_output_tokens=_cost(candidate, candidate.output_tokens_per_second),
        refusal=None,
    )


def _plan(question: ServingQuestion, settings: Settings, best: Candidate) -> ServingPlan:
    return ServingPlan(
        layout=_layout(best),
        settings=EngineSettings(
            engine=settings.profile.engine,
            engine_version=settings.profile.version,
            weights=settings.weights.name,
            kv_cache=settings.kv.name,
            max_model_len=settings.max_model_len,
            input_tokens=settings.input_tokens,
            output_tokens=settings.output_tokens,
            gpu_memory_utilization=best.replica.utilization_fraction,
            block_size=settings.block_size,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_num_seqs=settings.max_num_seqs,
            cache_implementation=settings.cache_implementation,
            rope_scaling=stated_scaling(question),
        ),
        memory=best.replica.memory,
        kv=_kv(question, settings, best),
        performance=_performance(best),
        cost_usd_per_million_output_tokens=_cost(best, best.output_tokens_per_second),
        learned=settings.learned,
    )


def _kv(question: ServingQuestion, settings: Settings, best: Candidate) -> KvCache:
    """Return the cache, with the longest request it could hold, which a search need not know of each candidate."""
    return replace(best.replica.kv, longest_context_tokens=longest_context(question, settings, best.replica))


def _layout(candidate: Candidate) -> ServingLayout:
    return ServingLayout(
        gpus=candidate.gpus,
        tensor_parallel=candidate.replica.degrees.tensor_parallel,
        pipeline_parallel=candidate.replica.degrees.pipeline_parallel,
        data_parallel=candidate.replicas,
        attention_data_parallel=candidate.replica.degrees.attention_data_parallel,
        expert_parallel=candidate.replica.degrees.expert_parallel,
        decode_context_parallel=candidate.replica.degrees.decode_context_parallel,
        prefill_replicas=(
            candidate.deployment.prefill_replicas if isinstance(candidate.deployment, DisaggregatedDeployment) else None
        ),
    )


def _performance(best: Candidate) -> Performance | None:
    if best.state is None or best.deployment is None:
        return None
    fitted = best.deployment.work.efficiency
    first, token = best.state.ttft_seconds, best.state.tpot_seconds
    return Performance(
        ttft_seconds=first,
        ttft_low_seconds=first * fitted.first_token_band.low,
        ttft_high_seconds=first * fitted.first_token_band.high,
        tpot_seconds=token,
        tpot_low_seconds=token * fitted.token_band.low,
        tpot_high_seconds=token * fitted.token_band.high,
        output_tokens_per_second=best.output_tokens_per_second,
        requests_per_second=best.state.requests_per_second,
        ttft_p99_seconds=best.state.ttft_p99_seconds,
        tpot_p99_seconds=best.state.tpot_p99_seconds,
        concurrency=best.concurrency,
        curve=best.deployment.curve(),
    )


def _cost(candidate: Candidate, output_tokens_per_second: float) -> float | None:
    if candidate.question.hardware.usd_per_gpu_hour is None or not output_tokens_per_second:
        return None
    return candidate.cost_of(output_tokens_per_second) * MILLION


def _alternative(candidate: Candidate, point: Point | None, *, is_on_front: bool) -> ServingAlternative:
    rate = None if point is None else point.output_tokens_per_second
    return ServingAlternative(
        gpu=candidate.question.hardware.gpu.id,
        layout=_layout(candidate),
        weights=candidate.settings.weights.name,
        kv_cache=candidate.settings.kv.name,
        max_num_batched_tokens=candidate.settings.max_num_batched_tokens,
        max_num_seqs=candidate.settings.max_num_seqs,
        kv_tokens=candidate.replica.kv.tokens,
        max_concurrency=candidate.replica.kv.max_concurrency,
        concurrency=None if point is None else point.concurrency,
        ttft_seconds=None if point is None else point.state.ttft_seconds,
        tpot_seconds=None if point is None else point.state.tpot_seconds,
        request_seconds=None if point is None else point.request_seconds,
        output_tokens_per_second=rate,
        gpu_seconds_per_million_output_tokens=None if rate is None else candidate.gpus / rate * MILLION,
        cost_usd_per_million_output_tokens=None if rate is None else _cost(candidate, rate),
        is_on_front=is_on_front,
        verdict=candidate.replica.verdict,
    )


def _summary(question: ServingQuestion, settings: Settings, best: Candidate) -> str:
    replica = best.replica
    cards = f"{best.gpus} x {question.hardware.gpu.id}"
    replicas = "1 replica" if best.replicas == 1 else f"{best.replicas} replicas"
    degrees = f"{replicas} of {_degrees_text(replica.degrees)}"
    # As the engine logs it: each attention rank has a cache of its own.
    owner = "an attention rank" if replica.degrees.attention_data_parallel > 1 else "a replica"
    if not replica.fits:
        return f"{question.model.name} does not fit {cards} ({degrees}): {_obstacle(settings, best)}"
    cache = (
        f"{replica.kv.available_bytes / GIB:.1f} GiB of cache a GPU hold {replica.kv.tokens:,} tokens {owner}, "
        f"{replica.kv.max_concurrency:.2f} requests of {settings.max_model_len:,}"
    )
    text = f"{question.model.name} fits {cards} ({degrees}): {cache}."
    if best.state is not None:
        text += (
            f" At concurrency {best.concurrency}: {best.state.ttft_seconds * 1e3:.0f} ms to the first token, "
            f"{best.state.tpot_seconds * 1e3:.1f} ms a token, {best.output_tokens_per_second:,.0f} tokens/s."
        )
    return text


def _degrees_text(degrees: Degrees) -> str:
    """Return the degrees in words; those that divide experts or a sequence only where there are any."""
    parts = [f"tensor parallel {degrees.tensor_parallel}", f"pipeline parallel {degrees.pipeline_parallel}"]
    for name, degree in (
        ("attention data parallel", degrees.attention_data_parallel),
        ("expert parallel", degrees.expert_parallel),
        ("decode context parallel", degrees.decode_context_parallel),
    ):
        if degree > 1:
            parts.append(f"{name} {degree}")
    return ", ".join(parts)


def _obstacle(settings: Settings, best: Candidate) -> str:
    memory, replica = best.replica.memory, best.replica
    if not replica.keeps_limit:
        return (
            f"the engine takes {memory.claimed_bytes / GIB:.1f} GiB a GPU at utilization "
            f"{replica.utilization_fraction:g}, {memory.limit_bytes / GIB:.1f} GiB are free."
        )
    needs = memory.items.total_bytes - memory.items.kv_cache
    return (
        f"weights and working memory take {needs / GIB:.1f} GiB of the engine's {memory.requested_bytes / GIB:.1f}, "
        f"and the {replica.kv.available_bytes / GIB:.1f} GiB left hold {replica.kv.max_concurrency:.2f} "
        f"requests of {settings.max_model_len:,} tokens."
    )


RULE_NOTES = {
    MemoryRule.PROFILED: "The CUDA context, which the engine takes before it measures, is not counted in the peak.",
    MemoryRule.STATIC_FRACTION: (
        "gpu_memory_utilization is mem_fraction_static: the share of what is free before loading that weights and "
        "cache take. activations is all that it leaves free."
    ),
    MemoryRule.FREE_FRACTION: (
        "gpu_memory_utilization is free_gpu_memory_fraction: the cache's share of what weights and one forward pass "
        "leave. No log tells that pass apart: it is estimated as vLLM's and counts whole as the band."
    ),
    MemoryRule.WHOLE_CARD: (
        "transformers has no pool of blocks: all that weights and one forward pass leave may become cache, and "
        "max_num_seqs bounds the batch."
    ),
}


def _engine_notes(settings: Settings) -> tuple[str, ...]:
    rule = RULE_NOTES[settings.profile.memory_rule]
    if settings.profile.timed_as is None:
        return (rule, f"The speed of {settings.profile.engine} is not described yet: performance is left out.")
    return (rule, FITTED_ON)


def _learned_note(learned: Learned) -> str:
    """Return what of the plan a measured start decided."""
    factors = (
        ("weights", learned.weights_factor),
        ("activations", learned.activations_factor),
        ("CUDA graphs", learned.cuda_graphs_factor),
        ("time to first token", learned.ttft_factor),
        ("time per token", learned.tpot_factor),
    )
    told = [f"{name} x {factor:.4g}" for name, factor in factors if factor != 1]
    told += [
        f"{learned.offset_bytes(ranks) / GIB:+.2f} GiB outside torch ({ranks.value})"
        for ranks in Ranks
        if learned.offset_bytes(ranks)
    ]
    return f"Learned from {learned.provenance}: {', '.join(told) or 'the plan as it was'}."


def _assumptions(question: ServingQuestion, settings: Settings, best: Candidate) -> tuple[str, ...]:
    notes = [*settings.assumptions]
    if settings.requests_per_second is not None:
        notes.append(RATE_NOTE if best.meets_concurrency else OUTRUN_NOTE)
    if settings.traffic.draft_tokens:
        notes.append(DRAFT_NOTE)
    if settings.traffic.cached_fraction:
        notes.append("Cached prompt tokens are not computed again; how requests share their blocks is not counted.")
    if settings.requests_per_second is None and settings.concurrency is None and best.state is not None:
        reason = "the most that runs at once"
        if best.meets_slo is not None:
            reason = "the most that keeps the service level" if best.meets_slo else "as no other keeps it better"
        elif question.objective == "latency":
            reason = "for the least latency"
        notes.append(f"concurrency {best.concurrency}, assumed: {reason}.")
    notes.append(
        f"{settings.profile.engine} {settings.profile.version}: gpu_memory_utilization "
        f"{best.replica.utilization_fraction:g}, block_size {settings.block_size}, max_num_batched_tokens "
        f"{settings.max_num_batched_tokens}, max_num_seqs {settings.max_num_seqs}."
    )
    notes.extend(_engine_notes(settings))
    notes.extend(best.replica.cache.notes(settings.profile))
    if best.replica.cache.source_tokens:
        notes.append(f"Each request's encoder hands over {best.replica.cache.source_tokens} tokens.")
    site = question.hardware.site
    if site is not None and settings.profile.timed_as in site.serving:
        notes.append(f"Latencies rest on {site.provenance}.")
    if settings.learned is not None:
        notes.append(_learned_note(settings.learned))
    if question.disaggregated is not None:
        notes.append(POOLS_NOTE)
    ranks = best.replica.degrees.attention_data_parallel
    if ranks > 1:
        notes.append(f"Each of the {ranks} attention ranks has a cache of its own and logs it: kv is one rank's.")
    gpu = question.hardware.gpu
    if settings.weights.compute_formats[0] not in gpu.peak_flops_per_second:
        notes.append(
            f"{gpu.id} states no rate for {settings.weights.compute_formats[0]}: it multiplies at that of "
            "another format of the same weights."
        )
    if settings.weights.element_bits < FEWEST_TIMED_BITS:
        notes.append("Weights of 4 bits are timed by their bytes and a 16-bit rate; unpacking them is not timed.")
    if settings.profile.memory_rule is MemoryRule.PROFILED and not gpu.id.startswith(LOGGED_GPU):
        notes.append(f"The engine's working memory was read from start-up logs on {LOGGED_GPU} cards.")
    return tuple(notes)
