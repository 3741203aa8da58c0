"""The search over GPUs, formats, batch limits and degrees: memory first, then speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planners.errors import ImpossibleLayout, InvalidQuestion, PlanningStopped, PlimsollError
from planners.questions import ServingQuestion
from planners.serving.batching import Deployment
from planners.serving.candidates import Candidate, judged
from planners.serving.choices import allowed_choices
from planners.serving.degrees import Degrees, degrees_obstacle, has_experts
from planners.serving.divisions import Pools
from planners.serving.ranking import rank
from planners.serving.replica import Replica, plan_replica, work_of
from planners.serving.settings import Settings, resolve_settings
from planners.serving.weights import layout_obstacle
from planners.stopping import ShouldStop, never


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
    candidates.sort(key=rank)
    return Found(candidates=tuple(candidates), considered=considered, excluded=excluded, refusals=tuple(refusals))


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

    Raises `ImpossibleLayout` if the fixed degrees leave none, with what forbids the first of them, and
    `PlanningStopped` once `should_stop` says so.
    """
    _check_fixed(question)
    candidates: list[Candidate] = []
    considered = excluded = 0
    obstacles: list[ImpossibleLayout] = []
    for degrees in _degrees(question):
        choices = _replica_choices(question, degrees.gpus)
        obstacle = _obstacle(question, degrees)
        if obstacle is not None or not choices:
            excluded += 1
            obstacles.extend([obstacle] if obstacle is not None else [])
            continue
        considered += 1
        if should_stop():
            raise PlanningStopped
        replica = plan_replica(question, settings, degrees)
        candidates.extend(_with_replicas(question, settings, replica, choices, entry, should_stop))
    if not candidates:
        raise _nothing_left(question, obstacles, considered)
    candidates.sort(key=rank)
    return Found(candidates=tuple(candidates), considered=considered, excluded=excluded)


def _nothing_left(
    question: ServingQuestion, obstacles: Sequence[ImpossibleLayout], considered: int
) -> ImpossibleLayout:
    """Return why no candidate is left."""
    if question.disaggregated is not None and not (obstacles and not considered):
        return ImpossibleLayout(
            "No division of the GPUs into prefilling and decoding replicas is as asked; each pool needs one at least.",
            rule="pools-need-replicas",
            pointer="/serving/disaggregated",
        )
    if obstacles:
        return obstacles[0]
    gpus = question.hardware.gpus
    return ImpossibleLayout(
        f"No layout of the fixed degrees uses {gpus.minimum} to {gpus.maximum} GPUs.",
        rule="gpus-product",
        pointer="/layout",
    )


def _obstacle(question: ServingQuestion, degrees: Degrees) -> ImpossibleLayout | None:
    return degrees_obstacle(question.model, question.engine, degrees) or layout_obstacle(question.model, degrees)


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
    for field, degree in degrees:
        if degree is not None and degree < 1:
            raise InvalidQuestion(f"{field} must be at least 1.", pointer=f"/layout/{field}")
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


def _degrees(question: ServingQuestion) -> Iterator[Degrees]:
    """Yield replicas' degrees: tensor within a node unless fixed, pipelines that divide or double.

    Models with experts share them out over 1, 2, 4 ... ranks of attention data
    parallelism within a node, each expert whole or divided.
    """
    layout, hardware = question.layout, question.hardware
    most = hardware.gpus.maximum
    node = min(most, hardware.gpus_per_node)
    tensors = (layout.tensor_parallel,) if layout.tensor_parallel is not None else tuple(range(1, node + 1))
    for tensor in tensors:
        for attention in _attention_ranks(question, node // tensor):
            pipelines = (
                (layout.pipeline_parallel,)
                if layout.pipeline_parallel is not None
                else tuple(_pipelines(question, most // (tensor * attention)))
            )
            for experts in _expert_ranks(question, tensor * attention):
                for pipeline in pipelines:
                    yield Degrees(
                        tensor_parallel=tensor,
                        pipeline_parallel=pipeline,
                        attention_data_parallel=attention,
                        expert_parallel=experts,
                        decode_context_parallel=layout.decode_context_parallel or 1,
                    )


def _attention_ranks(question: ServingQuestion, room: int) -> Iterator[int]:
    fixed = question.layout.attention_data_parallel
    if fixed is not None:
        yield fixed
        return
    degree = 1
    while degree == 1 or (has_experts(question.model) and degree <= room):
        yield degree
        degree *= 2


def _expert_ranks(question: ServingQuestion, ranks: int) -> tuple[int, ...]:
    fixed = question.layout.expert_parallel
    if fixed is not None:
        return (fixed,)
    return (1, ranks) if has_experts(question.model) and ranks > 1 else (1,)


def _pipelines(question: ServingQuestion, room: int) -> Iterator[int]:
    gpus = question.hardware.gpus
    most = min(room, question.model.num_layers)
    if gpus.minimum == gpus.maximum:
        yield from (degree for degree in range(1, most + 1) if gpus.minimum % degree == 0)
        return
    degree = 1
    while degree <= most:
        yield degree
        degree *= 2


def _replica_choices(question: ServingQuestion, gpus_per_replica: int) -> range:
    """Return how many replicas the GPUs allow."""
    gpus, fixed = question.hardware.gpus, question.layout.data_parallel
    fewest = max(1, -(-gpus.minimum // gpus_per_replica))
    most = gpus.maximum // gpus_per_replica
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
    """Yield the fewest replicas, the fewest that satisfy, and the most where more is better.

    More replicas never serve a request worse, so that the fewest that satisfy
    are found by halving.
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
    if work is not None and most > fewest and not chosen[fewest].is_satisfying:
        low, high = fewest, most
        top = candidate(most)
        if top.is_satisfying:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if candidate(middle).is_satisfying else (middle, high)
            chosen[high] = candidate(high)
    if not question.hardware.gpus.is_free and most not in chosen:
        chosen[most] = candidate(most)
    yield from chosen.values()
