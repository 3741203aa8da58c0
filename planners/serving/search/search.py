"""The search over GPUs, formats, batch limits and degrees: memory first, then speed."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from plimsoll.planners.ground.errors import ImpossibleLayout, InvalidQuestion, PlanningStopped, PlimsollError
from plimsoll.planners.ground.figures import counted
from plimsoll.planners.ground.stopping import ShouldStop, never
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.degrees import Degrees, context_degrees, degrees_obstacle, has_experts
from plimsoll.planners.serving.releases.profile import EngineProfile
from plimsoll.planners.serving.releases.rules import DegreeRules
from plimsoll.planners.serving.replica import FITS, Replica, plan_started, work_of
from plimsoll.planners.serving.search.candidates import Candidate, judged, simulated
from plimsoll.planners.serving.search.choices import allowed_choices
from plimsoll.planners.serving.search.divisions import Pools
from plimsoll.planners.serving.search.ranking import objective, rank, shortfall
from plimsoll.planners.serving.settings.settings import Settings, resolve_settings
from plimsoll.planners.serving.times.batching import Deployment
from plimsoll.planners.serving.times.disaggregation import DisaggregatedDeployment
from plimsoll.planners.serving.weights.divisibility import layout_obstacle, most_tensor_parallel
from plimsoll.planners.serving.weights.scale_blocks import block_obstacle

# Every number of pipeline stages and of attention's ranks is looked at in ranges of up to so many GPUs, beyond that
# the first few numbers and 24, 32, 48, 64 ...
MOST_GPUS_IN_FULL, FIRST_DEGREES = 64, 16
# More ranks than any layer has experts, of which each rank needs one at least.
MOST_ATTENTION_RANKS = 1024
# Candidates whose bursts are simulated, one after the other, until the best is one of them.
MOST_CONFIRMED = 4
# Of what is wanted, the part that a sequence's cache divided over ranks has to gain: nobody divides one for less.
NEXT_TO_NOTHING = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why GPUs of a fleet, by their place in it, cannot serve the model at all."""

    entry: int
    gpu: str
    error: PlimsollError


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search saw: its candidates, best first, and its counts."""

    candidates: tuple[Candidate, ...]
    considered: int
    excluded: int
    refusals: tuple[Refusal, ...] = ()


def search_fleet(questions: Sequence[ServingQuestion], should_stop: ShouldStop = never) -> Found:
    """Return the candidates of every kind of GPUs, format and batch limit allowed, best first by the objective.

    The questions differ in their GPUs alone. Of several choices those that cannot be
    count as excluded. `should_stop` is asked before each replica and each division of
    replicas is looked at. Raises what the first choice raises where none is possible,
    `InvalidQuestion` where the objective cannot rank the GPUs, and `PlanningStopped`.
    """
    _check_prices(questions)
    candidates: list[Candidate] = []
    refusals: list[Refusal] = []
    considered = excluded = 0
    for entry, question in enumerate(questions):
        errors: list[PlimsollError] = []
        choices = allowed_choices(question)
        before = len(candidates)
        for choice in choices:
            try:
                found = search_layouts(choice, resolve_settings(choice), should_stop, entry=entry)
            except PlanningStopped:
                raise
            except PlimsollError as error:
                if len(choices) == len(questions) == 1:
                    raise
                errors.append(error)
                excluded += 1
                continue
            candidates.extend(found.candidates)
            considered, excluded = considered + found.considered, excluded + found.excluded
        if len(candidates) == before:
            refusals.append(Refusal(entry=entry, gpu=question.hardware.gpu.id, error=errors[0]))
    if not candidates:
        raise refusals[0].error
    return Found(
        candidates=tuple(_confirmed(candidates)), considered=considered, excluded=excluded, refusals=tuple(refusals)
    )


def _confirmed(candidates: list[Candidate]) -> list[Candidate]:
    """Return candidates, best first, of which the best has had its bursts simulated where there are any.

    One whose simulation shows less than the closed form gives way to the next.
    """
    candidates.sort(key=rank)
    for _ in range(MOST_CONFIRMED):
        best = candidates[0]
        candidates[0] = simulated(best)
        if candidates[0] is best:
            break
        candidates.sort(key=rank)
    candidates[0] = simulated(candidates[0])
    return candidates


def _check_prices(questions: Sequence[ServingQuestion]) -> None:
    if len(questions) == 1 or questions[0].objective != "cost":
        return
    for entry, question in enumerate(questions):
        if question.hardware.usd_per_gpu_hour is None:
            raise InvalidQuestion(
                "objective 'cost' ranks kinds of GPUs by their price. Give usd_per_gpu_hour for every one.",
                pointer=f"/hardware/fleet/{entry}/usd_per_gpu_hour",
            )


def search_layouts(
    question: ServingQuestion, settings: Settings, should_stop: ShouldStop = never, *, entry: int = 0
) -> Found:
    """Return the candidates of one kind of GPUs in one choice of formats and limits, best first by the objective.

    Small replicas are looked at first; where few of many GPUs are what is wanted most, doubled degrees before odd ones,
    and no odd division that takes more of them than a deployment that keeps all that was asked, or than
    `MOST_GPUS_IN_FULL`. Raises what forbids the first degrees where none are left, and
    `PlanningStopped` once `should_stop` says so.
    """
    _check_fixed(question)
    candidates: list[Candidate] = []
    considered = excluded = 0
    obstacles: list[PlimsollError] = []
    elsewhere: list[PlimsollError | None] = []
    enough = math.inf
    # Made once: it tells what is enough by then.
    for degrees in _in_order(question, settings.profile, lambda: enough):  # noqa: B023
        if degrees.gpus > enough and not _is_usual(question, degrees):
            continue
        choices = _replica_choices(question, degrees.gpus)
        obstacle: PlimsollError | None = _obstacle(question, degrees, settings.profile)
        if obstacle is None and choices:
            if should_stop():
                raise PlanningStopped
            try:
                started, replica = plan_started(question, settings, degrees)
            except PlimsollError as error:
                obstacle = error
        if obstacle is not None or not choices:
            excluded += 1
            obstacles.extend([obstacle] if obstacle is not None and choices else [])
            elsewhere.extend([] if choices else [obstacle])
            continue
        considered += 1
        if not math.isinf(enough):
            # More GPUs than are enough are no better; the fewest of these replicas stand for them.
            choices = choices[: max(1, int(enough) // degrees.gpus - choices.start + 1)]
        found = list(_with_replicas(question, started, replica, choices, entry, should_stop))
        candidates.extend(found)
        if _wants_fewest(question):
            enough = min(
                [enough, *(each.gpus for each in found if each.is_satisfying and each.replica.verdict == FITS)]
            )
    if not candidates:
        # What forbids degrees that the GPUs are no multiple of tells something only where it forbids them all.
        if not obstacles and elsewhere and None not in elsewhere:
            obstacles = [each for each in elsewhere if each is not None]
        raise _nothing_left(question, obstacles, considered)
    if question.layout.decode_context_parallel is None:
        candidates = _without_needless_contexts(candidates)
    return Found(candidates=tuple(_confirmed(candidates)), considered=considered, excluded=excluded)


def _without_needless_contexts(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates without those that divide sequences' caches over ranks and gain next to nothing by it."""
    undivided = {
        _without_contexts(each): each for each in candidates if each.replica.degrees.decode_context_parallel == 1
    }

    def gains(candidate: Candidate) -> bool:
        plain = undivided.get(_without_contexts(candidate), candidate)
        if plain is candidate or shortfall(candidate) != shortfall(plain):
            return plain is candidate or shortfall(candidate) < shortfall(plain)
        *before, goal = objective(plain)
        *now, least = objective(candidate)
        return now < before or least < goal - NEXT_TO_NOTHING * abs(goal)

    return [each for each in candidates if gains(each)]


def _without_contexts(candidate: Candidate) -> tuple[Degrees, int, int | None]:
    """Return what a candidate shares with those that differ in their division of caches alone."""
    deployment = candidate.deployment
    prefill = deployment.prefill_replicas if isinstance(deployment, DisaggregatedDeployment) else None
    return replace(candidate.replica.degrees, decode_context_parallel=1), candidate.replicas, prefill


def _nothing_left(question: ServingQuestion, obstacles: Sequence[PlimsollError], considered: int) -> PlimsollError:
    """Return why no candidate is left."""
    if question.disaggregated is not None and not (obstacles and not considered):
        return ImpossibleLayout(
            "The GPUs cannot be divided into prefill and decode replicas as asked; each pool needs at least one "
            "replica.",
            rule="pools-need-replicas",
            pointer="/serving/disaggregated",
        )
    if obstacles:
        return obstacles[0]
    count = question.hardware.gpus
    gpus = (
        counted(count.maximum, "GPU") if count.minimum == count.maximum else f"{count.minimum} to {count.maximum} GPUs"
    )
    return ImpossibleLayout(
        f"With the fixed degrees no layout uses {gpus}.",
        rule="gpus-product",
        pointer="/layout",
    )


def _obstacle(question: ServingQuestion, degrees: Degrees, profile: EngineProfile) -> ImpossibleLayout | None:
    return (
        degrees_obstacle(question.model, profile, degrees)
        or layout_obstacle(question.model, degrees, engine=question.engine)
        or block_obstacle(question, degrees, profile.version)
    )


def _check_fixed(question: ServingQuestion) -> None:
    """Raise for a fixed degree that no run can have."""
    layout, gpus = question.layout, question.hardware.gpus
    if gpus.minimum < 1 or gpus.maximum < gpus.minimum:
        raise InvalidQuestion("gpus must be at least 1, and its max no less than its min.", pointer="/hardware/gpus")
    degrees = (
        ("tensor_parallel", layout.tensor_parallel),
        ("pipeline_parallel", layout.pipeline_parallel),
        ("attention_data_parallel", layout.attention_data_parallel),
        ("data_parallel", layout.data_parallel),
    )
    product = 1
    for _, degree in degrees:
        product *= degree or 1
    if layout.pipeline_parallel is not None and layout.pipeline_parallel > question.model.num_layers:
        raise ImpossibleLayout(
            f"pipeline_parallel {layout.pipeline_parallel} exceeds the {question.model.num_layers} layers.",
            rule="pipeline-needs-layers",
            pointer="/layout/pipeline_parallel",
        )
    is_fixed = all(degree is not None for field, degree in degrees if field != "attention_data_parallel")
    if is_fixed and not gpus.minimum <= product <= gpus.maximum:
        wanted = str(gpus.minimum) if gpus.minimum == gpus.maximum else f"{gpus.minimum} to {gpus.maximum}"
        raise ImpossibleLayout(
            f"data x attention_data x tensor x pipeline is {product}, and gpus is {wanted}.",
            rule="gpus-product",
            pointer="/layout",
        )


def _in_order(question: ServingQuestion, profile: EngineProfile, enough: Callable[[], float]) -> Iterator[Degrees]:
    """Yield the degrees as they are looked at: doubled ones before odd ones, and small ones first.

    Odd ones are yielded up to the GPUs that are `enough` by then, and up to `MOST_GPUS_IN_FULL`.
    """
    yield from _degrees(question, profile, is_odd=False)
    if not _has_odd(question):
        return
    done = 0.0
    while (most := min(MOST_GPUS_IN_FULL, enough())) > done:
        yield from _degrees(question, profile, is_odd=True, above=done, most=most)
        done = most


def _degrees(
    question: ServingQuestion, profile: EngineProfile, *, is_odd: bool, above: float = 0, most: float = math.inf
) -> list[Degrees]:
    """Return the degrees of replicas that the GPUs allow, small ones first, of more GPUs than `above`, at most `most`.

    Fixed degrees are as they are fixed, of the rest there is every one.
    """
    rules = profile.degrees

    def contexts(tensor_parallel: int) -> tuple[int, ...]:
        # Who names tensor parallelism as a command has it names the division of its ranks' caches too.
        is_open = question.layout.tensor_parallel is None
        return context_degrees(question.model, profile, tensor_parallel) if is_open else (1,)

    fits_nodes = functools.partial(_fits_nodes, question)
    found = [
        Degrees(
            tensor_parallel=tensor,
            pipeline_parallel=pipeline,
            attention_data_parallel=attention,
            expert_parallel=experts,
            decode_context_parallel=context,
        )
        for tensor, attention, experts, pipeline in _every_degree(question, rules)
        for context in _fixed_or(question.layout.decode_context_parallel, contexts(tensor))
        if above < (gpus := tensor * attention * pipeline) <= most
        and fits_nodes(gpus)
        and _is_odd(question, attention, pipeline) == is_odd
        and (question.layout.pipeline_parallel is not None or _replica_choices(question, gpus))
    ]
    return sorted(found, key=attrgetter("gpus"))


def _fits_nodes(question: ServingQuestion, gpus: int) -> bool:
    """Return whether a replica's GPUs lie in one node or fill several, where others of the GPUs asked for do."""
    node, asked = question.hardware.gpus_per_node, question.hardware.gpus
    has_whole = asked.minimum <= node or asked.maximum // node * node >= asked.minimum
    is_free = asked.minimum < asked.maximum and has_whole
    return not is_free or gpus <= node or gpus % node == 0


def _every_degree(question: ServingQuestion, rules: DegreeRules) -> Iterator[tuple[int, int, int, int]]:
    """Yield every tensor, attention data, expert and pipeline parallelism.

    Models with experts share them out over ranks of attention data parallelism, each expert whole or divided.
    """
    layout, most = question.layout, question.hardware.gpus.maximum
    for tensor in _fixed_or(layout.tensor_parallel, range(1, min(most, most_tensor_parallel(question.model)) + 1)):
        for attention in _fixed_or(layout.attention_data_parallel, _attention_ranks(question, most // tensor)):
            ranks = tensor * attention
            stages = _numbers(question, min(most // ranks, question.model.num_layers))
            for experts in _fixed_or(layout.expert_parallel, _expert_ranks(question, rules, ranks)):
                for pipeline in _fixed_or(layout.pipeline_parallel, stages):
                    yield tensor, attention, experts, pipeline


def _has_odd(question: ServingQuestion) -> bool:
    """Return whether degrees other than 1, 2, 4, 8 ... come last: where few of many GPUs are what is wanted most."""
    gpus = question.hardware.gpus
    return gpus.minimum < gpus.maximum and gpus.maximum > MOST_GPUS_IN_FULL and _wants_fewest(question)


def _is_odd(question: ServingQuestion, attention: int, pipeline: int) -> bool:
    """Return whether degrees that come last are among those that the question leaves free."""
    layout = question.layout
    free_attention = attention if layout.attention_data_parallel is None else 1
    free_pipeline = pipeline if layout.pipeline_parallel is None else 1
    return bool(free_attention & (free_attention - 1) or free_pipeline & (free_pipeline - 1)) and _has_odd(question)


def _is_usual(question: ServingQuestion, degrees: Degrees) -> bool:
    """Return whether degrees are those of machines: within a node, doubled."""
    doubled = (degrees.attention_data_parallel, degrees.pipeline_parallel)
    return degrees.ranks_per_stage <= question.hardware.gpus_per_node and all(not each & (each - 1) for each in doubled)


def _fixed_or(fixed: int | None, allowed: Iterable[int]) -> Iterable[int]:
    return allowed if fixed is None else (fixed,)


def _attention_ranks(question: ServingQuestion, room: int) -> Sequence[int]:
    """Return over how many ranks attention may be copied."""
    return _numbers(question, min(room, MOST_ATTENTION_RANKS)) if has_experts(question.model) else (1,)


def _numbers(question: ServingQuestion, most: int) -> Sequence[int]:
    """Return the degrees up to `most` to look at: what divides the GPUs, every number of a range of few.

    Of a range of many, beyond the first few, 1, 2, 3, 4, 6, 8, 12 ... only, unless the fewest GPUs are wanted.
    """
    gpus = question.hardware.gpus
    if gpus.minimum == gpus.maximum:
        return [number for number in range(1, most + 1) if gpus.maximum % number == 0]
    if gpus.maximum <= MOST_GPUS_IN_FULL or _wants_fewest(question):
        return range(1, most + 1)
    doubled = (times * 2**power for times in (1, 3) for power in range(most.bit_length()))
    return sorted(number for number in {*range(1, FIRST_DEGREES + 1), *doubled} if number <= most)


def _wants_fewest(question: ServingQuestion) -> bool:
    """Return whether fewer GPUs are better than anything else, once all that was asked is kept."""
    return question.hardware.gpus.is_free or question.objective == "fewest_gpus"


def _expert_ranks(question: ServingQuestion, rules: DegreeRules, ranks: int) -> Iterable[int]:
    """Return over how many ranks whole experts may be dealt out: all or none with some engines, else any divisor."""
    if not has_experts(question.model):
        return (1,)
    if rules.deals_to_all_or_none:
        return sorted({1, ranks})
    return (degree for degree in range(1, min(ranks, MOST_ATTENTION_RANKS) + 1) if ranks % degree == 0)


def _replica_choices(question: ServingQuestion, gpus_per_replica: int) -> range:
    """Return how many replicas the GPUs allow; no more than there are clients, who would leave others idle."""
    gpus, fixed = question.hardware.gpus, question.layout.data_parallel
    fewest = max(1, -(-gpus.minimum // gpus_per_replica))
    most = gpus.maximum // gpus_per_replica
    if fixed is None and question.concurrency is not None and question.disaggregated is None:
        most = min(most, max(fewest, question.concurrency)) if most >= fewest else most
    if fixed is not None:
        return range(fixed, fixed + 1) if fewest <= fixed <= most else range(0)
    return range(fewest, most + 1)


def _with_replicas(
    question: ServingQuestion,
    settings: Settings,
    replica: Replica,
    choices: range,
    entry: int,
    should_stop: ShouldStop,
) -> Iterator[Candidate]:
    """Yield the fewest replicas, the fewest that miss no more than the most do, and the most where more is better.

    More replicas never serve a request worse, so that the second are found by
    halving. Without a number of GPUs no more are taken than keep all that was asked.
    """
    runs = replica.places >= 1 and replica.fits and settings.profile.timed_as is not None
    work = work_of(question, settings, replica) if runs else None
    if question.disaggregated is not None:
        pools = Pools(
            question=question,
            asked=question.disaggregated,
            settings=settings,
            replica=replica,
            work=work,
            entry=entry,
            should_stop=should_stop,
        )
        yield from pools.candidates(choices)
        return

    def candidate(replicas: int) -> Candidate:
        deployment = None
        if work is not None:
            deployment = Deployment(
                work=work,
                places=replica.places,
                replicas=replicas,
                traffic=settings.traffic,
            )
        return judged(question, settings, replica, replicas, deployment, entry=entry)

    fewest, most = choices[0], choices[-1]
    chosen = {fewest: candidate(fewest)}
    if most > fewest and not chosen[fewest].is_satisfying:
        low, high, top = fewest, most, candidate(most)
        least = shortfall(top)
        if least < shortfall(chosen[fewest]) and (top.is_satisfying or not question.hardware.gpus.is_free):
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if shortfall(candidate(middle)) <= least else (middle, high)
            chosen[high] = candidate(high)
    if not _wants_fewest(question) and question.objective != "cost":
        chosen.setdefault(most, candidate(most))
    yield from chosen.values()
