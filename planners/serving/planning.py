"""The front door of the serving planner: a question in, a deployment with its cache and its speed out."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from plimsoll.planners.derived import Derived
from plimsoll.planners.ground.stopping import ShouldStop, never, until_stopped
from plimsoll.planners.plans import SearchCounts
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.advice.changes import longest_context
from plimsoll.planners.serving.advice.serving_advice import serving_advice
from plimsoll.planners.serving.answer import (
    EngineSettings,
    KvCache,
    Performance,
    ServingAlternative,
    ServingAnswer,
    ServingFleetEntry,
    ServingLayout,
    ServingPlan,
    SimulatedLoad,
)
from plimsoll.planners.serving.notes import serving_notes
from plimsoll.planners.serving.releases.cards import activations_format
from plimsoll.planners.serving.search.candidates import MILLION, Candidate
from plimsoll.planners.serving.search.front import Point, pareto_front, point_of
from plimsoll.planners.serving.search.search import Found, search_fleet, search_layouts
from plimsoll.planners.serving.sentences import serving_summary
from plimsoll.planners.serving.settings.expert_choice import assumed_backend
from plimsoll.planners.serving.settings.lengths import stated_scaling
from plimsoll.planners.serving.settings.settings import Settings, resolve_settings
from plimsoll.planners.serving.simulated_load import SimulatedReplica
from plimsoll.planners.serving.times.batching import Deployment
from plimsoll.planners.serving.times.disaggregation import DisaggregatedDeployment
from plimsoll.planners.serving.times.efficiency import LAYOUT_SPREAD, Band

MOST_ALTERNATIVES = 5
# The summary where no other could be written, by whether all that was asked is kept.
PLAIN = {True: "Does what was asked.", False: "Does not do what was asked."}


def plan_serving(
    question: ServingQuestion,
    should_stop: ShouldStop = never,
    stop_advising: ShouldStop | None = None,
    derived: Derived | None = None,
) -> ServingAnswer:
    """Return the best deployment for the question, or the closest where none fits.

    With `stop_advising` that is asked in place of `should_stop` while advice is sought, and what was found until then
    is the advice. `derived` works out all that is told beside the plan itself. Raises `InvalidQuestion` and
    `ImpossibleLayout` with the field for a question that makes no sense, `NotYetAvailable` for one this version does
    not answer, and `PlanningStopped` once `should_stop`, asked many times a second, says so.
    """
    return plan_serving_fleet((question,), should_stop, stop_advising, derived).answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFleetAnswer:
    """The answer on the best entry, `chosen`, every entry under its `fleet` where there are several."""

    chosen: int
    answer: ServingAnswer


def plan_serving_fleet(
    questions: Sequence[ServingQuestion],
    should_stop: ShouldStop = never,
    stop_advising: ShouldStop | None = None,
    derived: Derived | None = None,
) -> ServingFleetAnswer:
    """Return the best deployment over several kinds of GPUs; the questions differ in these alone.

    An entry that cannot serve the model is listed with its refusal. Raises what
    `plan_serving` raises on the first entry where none can.
    """
    derived = derived or Derived()
    found = search_fleet(questions, should_stop)
    best = found.candidates[0]
    question, settings = best.question, best.settings
    plan = functools.partial(_best_candidate, stop_advising or should_stop)
    advice = serving_advice(questions[best.entry], best, plan)
    answer = ServingAnswer(
        fits=best.replica.fits,
        verdict=best.replica.verdict,
        meets=best.is_satisfying,
        meets_concurrency=best.meets_concurrency,
        meets_slo=best.meets_slo,
        summary=derived.part(
            "summary", lambda: serving_summary(question, settings, best), otherwise=PLAIN[best.is_satisfying]
        ),
        plan=_plan(question, settings, best, derived),
        alternatives=derived.part("alternatives", lambda: _alternatives(found.candidates), otherwise=()),
        search=SearchCounts(
            layouts_considered=found.considered,
            layouts_excluded=found.excluded,
            layouts_fitting=len({id(other.replica) for other in found.candidates if other.replica.fits}),
        ),
        advice=derived.several("advice", advice if stop_advising is None else until_stopped(advice)),
        assumptions=(
            *question.model.assumptions,
            *question.hardware.gpu.assumptions,
            *derived.several("assumptions", serving_notes(question, settings, best)),
        ),
        fleet=derived.part("fleet", lambda: _fleet(found), otherwise=()) if len(questions) > 1 else (),
    )
    return ServingFleetAnswer(chosen=best.entry, answer=replace(answer, omitted=derived.omitted))


def _best_candidate(should_stop: ShouldStop, question: ServingQuestion) -> Candidate:
    return search_layouts(question, resolve_settings(question), should_stop).candidates[0]


def _alternatives(candidates: Sequence[Candidate]) -> tuple[ServingAlternative, ...]:
    """Return the Pareto front from the fastest to the cheapest, and then the next best that do not lie on it.

    The plan itself is not repeated, nor is anything listed that takes more GPUs than another and yet is no faster
    and no cheaper.
    """
    if len(candidates) == 1:
        return ()
    best = candidates[0]
    whole_front = pareto_front(candidates)
    front = [point for point in whole_front if point.candidate is not best or point.concurrency != best.concurrency]
    on_front = {id(point.candidate) for point in front}
    better = [point for point in (point_of(best), *whole_front) if point is not None]
    others = (other for other in candidates[1:] if other.replica.fits and id(other) not in on_front)
    kept = (other for other in others if not any(_is_waste(other, point) for point in better))
    return (
        *(_alternative(point.candidate, point, is_on_front=True) for point in front),
        *(
            _alternative(other, point_of(other), is_on_front=False)
            for other in itertools.islice(kept, MOST_ALTERNATIVES)
        ),
    )


def _is_waste(other: Candidate, point: Point) -> bool:
    """Return whether a deployment takes more GPUs than a point and is neither faster nor cheaper."""
    own = point_of(other)
    return (
        own is not None
        and other.gpus > point.candidate.gpus
        and own.request_seconds >= point.request_seconds
        and own.cost >= point.cost
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
        cost_usd_per_million_output_tokens=candidate.usd_per_million_tokens,
        refusal=None,
    )


def _plan(question: ServingQuestion, settings: Settings, best: Candidate, derived: Derived) -> ServingPlan:
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
            is_block_size_fixed=question.block_size is not None,
            activations=activations_format(settings.weights.name, settings.kv.name, question.hardware.gpu),
            chunked_prefill=question.chunked_prefill,
            expert_backend=settings.expert_backend or assumed_backend(question, settings.profile, best.replica.degrees),
        ),
        memory=best.replica.memory,
        kv=derived.part(
            "plan.kv.longest_context_tokens", lambda: _kv(question, settings, best), otherwise=best.replica.kv
        ),
        performance=_performance(best, derived),
        cost_usd_per_million_output_tokens=best.usd_per_million_tokens,
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


def _performance(best: Candidate, derived: Derived) -> Performance | None:
    if best.state is None or best.deployment is None:
        return None
    first_band, token_band = _bands(best.deployment)
    first, token = best.state.ttft_seconds, best.state.tpot_seconds
    return Performance(
        ttft_seconds=first,
        ttft_low_seconds=first * first_band.low,
        ttft_high_seconds=first * first_band.high,
        tpot_seconds=token,
        tpot_low_seconds=token * token_band.low,
        tpot_high_seconds=token * token_band.high,
        output_tokens_per_second=best.output_tokens_per_second,
        requests_per_second=best.state.requests_per_second,
        ttft_p99_seconds=best.state.ttft_p99_seconds,
        tpot_p99_seconds=best.state.tpot_p99_seconds,
        concurrency=best.concurrency,
        curve=best.deployment.curve(),
        simulated=derived.part("plan.performance.simulated", lambda: _simulated(best), otherwise=None),
    )


def _simulated(best: Candidate) -> SimulatedLoad | None:
    """Return what requests see one by one under the asked load.

    None where no load or no simulation was asked, requests outrun the replicas, or prefill has replicas of its own.
    """
    settings, deployment = best.settings, best.deployment
    is_divided = isinstance(deployment, DisaggregatedDeployment)
    if best.load is not None or deployment is None or is_divided or not best.question.simulate:
        return best.load
    replica = SimulatedReplica(question=best.question, settings=settings, replica=best.replica, deployment=deployment)
    if settings.requests_per_second is not None:
        if best.state is None or best.is_outrun:
            return None
        return replica.at_rate(settings.requests_per_second, best.state.running)
    return None if settings.concurrency is None else replica.closed_loop(settings.concurrency)


def _bands(deployment: Deployment) -> tuple[Band, Band]:
    """Return the bands of first tokens and of times between them; no public run had prefill on replicas of its own."""
    work = deployment.work
    is_wide = bool(work.unseen) or not isinstance(deployment, DisaggregatedDeployment)
    spread = 1.0 if is_wide else LAYOUT_SPREAD
    return work.first_token_band.widened(spread), work.token_band.widened(spread)


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
        cost_usd_per_million_output_tokens=None if rate is None else candidate.usd_per_million_tokens_at(rate),
        is_on_front=is_on_front,
        verdict=candidate.replica.verdict,
    )
