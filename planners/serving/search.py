"""The search over tensor, pipeline and data parallelism: memory first, then speed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planners.errors import ImpossibleLayout, InvalidQuestion
from planners.questions import ServingQuestion
from planners.serving.batching import Deployment, SteadyState
from planners.serving.degrees import Degrees, degrees_obstacle, has_experts
from planners.serving.disaggregation import DisaggregatedDeployment
from planners.serving.latency import ReplicaWork
from planners.serving.replica import FITS, Replica, plan_replica, work_of
from planners.serving.settings import Settings
from planners.serving.weights import layout_obstacle


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A replica, how many of them, and what they deliver at the asked concurrency.

    `state` is None where not one request fits or the engine's speed is not described. `meets_concurrency` and
    `meets_slo` are None where nothing was asked; at a request rate the former says
    whether the replicas keep up.
    """

    replica: Replica
    replicas: int
    deployment: Deployment | None
    concurrency: int
    state: SteadyState | None
    meets_concurrency: bool | None
    meets_slo: bool | None

    @property
    def gpus(self) -> int:
        """Return the GPUs of the whole deployment."""
        return self.replica.gpus * self.replicas

    @property
    def is_satisfying(self) -> bool:
        """Return whether it fits and keeps everything asked of it."""
        return self.replica.fits and self.meets_concurrency is not False and self.meets_slo is not False

    @property
    def output_tokens_per_second(self) -> float:
        """Return the deployment's rate, 0 where nothing runs."""
        if self.state is None or self.deployment is None:
            return 0.0
        return self.state.requests_per_second * self.deployment.traffic.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search saw: its candidates, best first, and its counts."""

    candidates: tuple[Candidate, ...]
    considered: int
    excluded: int


def search_layouts(question: ServingQuestion, settings: Settings) -> Found:
    """Return the candidates, best first by the objective.

    Raises `ImpossibleLayout` if the fixed degrees leave none, with what forbids the first of them.
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
        replica = plan_replica(question, settings, degrees)
        candidates.extend(_with_replicas(question, settings, replica, choices))
    if not candidates and question.disaggregated is not None and not (obstacles and not considered):
        raise ImpossibleLayout(
            "No division of the GPUs into prefilling and decoding replicas is as asked; each pool needs one at least.",
            rule="pools-need-replicas",
            pointer="/serving/disaggregated",
        )
    if not candidates and obstacles:
        raise obstacles[0]
    if not candidates:
        gpus = question.hardware.gpus
        raise ImpossibleLayout(
            f"No layout of the fixed degrees uses {gpus.minimum} to {gpus.maximum} GPUs.",
            rule="gpus-product",
            pointer="/layout",
        )
    candidates.sort(key=lambda candidate: _rank(question, candidate))
    return Found(candidates=tuple(candidates), considered=considered, excluded=excluded)


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
    question: ServingQuestion, settings: Settings, replica: Replica, choices: range
) -> Iterator[Candidate]:
    """Yield the fewest replicas, the fewest that satisfy, and the most where more is better.

    More replicas never serve a request worse, so that the fewest that satisfy
    are found by halving.
    """
    runs = replica.places >= 1 and replica.fits and settings.profile.timed_as is not None
    work = work_of(question, settings, replica) if runs else None
    if question.disaggregated is not None:
        yield from _disaggregated(question, settings, replica, work, choices)
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
        return _judged(question, settings, replica, replicas, deployment)

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


def _disaggregated(
    question: ServingQuestion, settings: Settings, replica: Replica, work: ReplicaWork | None, choices: range
) -> Iterator[Candidate]:
    """Yield every division of the most replicas into prefilling and decoding ones that the question allows."""
    replicas, asked = choices[-1], question.disaggregated
    if asked is None:
        return
    for prefill in range(1, replicas):
        pools = (prefill * replica.gpus, (replicas - prefill) * replica.gpus)
        if any(
            want not in (None, gpus) for want, gpus in zip((asked.prefill_gpus, asked.decode_gpus), pools, strict=True)
        ):
            continue
        deployment = None
        if work is not None:
            deployment = DisaggregatedDeployment(
                work=work,
                places=replica.places,
                replicas=replicas,
                traffic=settings.traffic,
                prefill_replicas=prefill,
                transfer_seconds=_transfer_seconds(question, settings, replica, replicas),
            )
        yield _judged(question, settings, replica, replicas, deployment)


def _transfer_seconds(question: ServingQuestion, settings: Settings, replica: Replica, replicas: int) -> float:
    """Return the time of a prompt's cache between replicas: each GPU sends its share to its peer at once."""
    hardware = question.hardware
    is_near = replicas * replica.gpus <= hardware.gpus_per_node
    rate = hardware.gpu.link_bytes_per_second if is_near else hardware.gpu.nic_bytes_per_second
    return settings.traffic.input_tokens * replica.kv.bytes_per_token_per_gpu / rate


def _judged(
    question: ServingQuestion, settings: Settings, replica: Replica, replicas: int, deployment: Deployment | None
) -> Candidate:
    asked, slo = settings.concurrency, question.slo
    has_slo = slo is not None and (slo.ttft_seconds is not None or slo.tpot_seconds is not None)
    rate = settings.requests_per_second
    concurrency, state = asked or replicas, None
    keeps_up = None if asked is None else replica.fits and asked <= replica.places * replicas
    if rate is not None:
        state = None if deployment is None else deployment.at_rate(rate)
        keeps_up = state is not None
    if deployment is not None and rate is not None:
        # Where requests outrun the replicas, what those deliver when full.
        concurrency = deployment.most_running if state is None else max(1, round(state.running))
        state = state or deployment.at(concurrency)
    elif deployment is not None:
        if asked is None:
            concurrency = _assumed_concurrency(question, deployment, has_slo=has_slo)
        state = deployment.at(concurrency)
    return Candidate(
        replica=replica,
        replicas=replicas,
        deployment=deployment,
        concurrency=concurrency,
        state=state,
        meets_concurrency=keeps_up,
        meets_slo=_keeps_slo(question, state) if has_slo else None,
    )


def _keeps_slo(question: ServingQuestion, state: SteadyState | None) -> bool:
    slo = question.slo
    if state is None or slo is None:
        return False
    keeps_first = slo.ttft_seconds is None or state.ttft_seconds <= slo.ttft_seconds
    return keeps_first and (slo.tpot_seconds is None or state.tpot_seconds <= slo.tpot_seconds)


def _assumed_concurrency(question: ServingQuestion, deployment: Deployment, *, has_slo: bool) -> int:
    """Return the most that keeps the service level, one request for the least latency, else the most that runs."""
    if has_slo:
        return _most_within_slo(question, deployment)
    return 1 if question.objective == "latency" else deployment.most_running


def _most_within_slo(question: ServingQuestion, deployment: Deployment) -> int:
    """Return the highest concurrency that keeps the service level, one a replica if none does."""
    low, high = deployment.replicas, deployment.most_running
    if _keeps_slo(question, deployment.at(high)):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _keeps_slo(question, deployment.at(middle)) else (low, middle)
    return low


def _rank(question: ServingQuestion, candidate: Candidate) -> tuple[float, ...]:
    """Return the sort key, least first: what is kept, then the objective, then fewer GPUs.

    Where nothing fits, the closest is the one whose cache holds the largest part
    of a request, and where none has a cache at all, the one that needs least a GPU.
    """
    replica = candidate.replica
    kept = (
        0.0 if replica.fits else 1.0,
        0.0 if replica.keeps_limit else 1.0,
        0.0 if replica.verdict == FITS else 1.0,
        0.0 if candidate.meets_concurrency is not False else 1.0,
        0.0 if candidate.meets_slo is not False else 1.0,
    )
    if candidate.state is None or candidate.deployment is None:
        items = replica.memory.items
        needed = float(items.total_bytes - items.kv_cache)
        return (*kept, -replica.kv.max_concurrency, -float(replica.kv.available_bytes), needed, float(candidate.gpus))
    return (*kept, *_objective(question, candidate), float(candidate.gpus), float(replica.gpus))


def _objective(question: ServingQuestion, candidate: Candidate) -> tuple[float, ...]:
    rate, gpus = candidate.output_tokens_per_second, float(candidate.gpus)
    if question.objective == "latency" and candidate.state is not None and candidate.deployment is not None:
        steps = candidate.deployment.traffic.output_tokens - 1
        goal = candidate.state.ttft_seconds + steps * candidate.state.tpot_seconds
    elif question.objective == "cost":
        goal = gpus / rate
    elif question.objective == "fewest_gpus":
        return (gpus, -rate)
    else:
        goal = -rate
    return (gpus, goal) if question.hardware.gpus.is_free else (goal,)
