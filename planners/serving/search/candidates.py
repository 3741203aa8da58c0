"""Candidates of a search: replicas, how many, and what they deliver, judged by what the client asked."""

from __future__ import annotations

from dataclasses import dataclass, replace

from plimsoll.planners.ground.units import SECONDS_PER_HOUR
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.answer import SimulatedLoad
from plimsoll.planners.serving.replica import Replica
from plimsoll.planners.serving.settings.settings import Settings
from plimsoll.planners.serving.simulated_load import SimulatedReplica
from plimsoll.planners.serving.times.batching import Deployment, SteadyState

MILLION = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A replica, how many of them, and what they deliver at the asked concurrency.

    `question` is the client's with one of its GPUs, formats and batch limits, `entry`
    the place of these GPUs in its fleet.

    `state` is None where not one request fits or the engine's speed is not described. `meets_concurrency` and
    `meets_slo` are None where nothing was asked; at a request rate and for bursts the former says
    whether the replicas keep up. Bursts are judged by `load`, their
    simulation, where there is one (`simulated`), else by the closed form.
    """

    question: ServingQuestion
    settings: Settings
    entry: int
    replica: Replica
    replicas: int
    deployment: Deployment | None
    concurrency: int
    state: SteadyState | None
    meets_concurrency: bool | None
    meets_slo: bool | None
    load: SimulatedLoad | None = None

    @property
    def gpus(self) -> int:
        """Return the GPUs of the whole deployment."""
        return self.replica.gpus * self.replicas

    @property
    def cost(self) -> float:
        """Return dollars, or GPU seconds where there is no price, for each token put out."""
        return self.cost_of(self.output_tokens_per_second)

    def cost_of(self, output_tokens_per_second: float) -> float:
        """Return the cost of a token at a rate of the whole deployment."""
        price = self.question.hardware.usd_per_gpu_hour
        second = 1.0 if price is None else price / SECONDS_PER_HOUR
        return self.gpus * second / output_tokens_per_second

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Return the dollars for a million tokens put out, None without a price and where nothing runs."""
        return self.usd_per_million_tokens_at(self.output_tokens_per_second)

    def usd_per_million_tokens_at(self, output_tokens_per_second: float) -> float | None:
        """Return the same at a rate of the whole deployment."""
        if self.question.hardware.usd_per_gpu_hour is None or not output_tokens_per_second:
            return None
        return self.cost_of(output_tokens_per_second) * MILLION

    @property
    def is_satisfying(self) -> bool:
        """Return whether it fits and keeps everything asked of it."""
        return self.replica.fits and self.meets_concurrency is not False and self.meets_slo is not False

    @property
    def is_outrun(self) -> bool:
        """Return whether requests come faster than they are answered, so that ever more of them wait."""
        return self.settings.requests_per_second is not None and self.meets_concurrency is False

    @property
    def latency_excess(self) -> float:
        """Return the latency furthest beyond what was asked of it, as a multiple of that; 1 where all are kept."""
        return max(1.0, slo_part(self.question, self.state))

    @property
    def output_tokens_per_second(self) -> float:
        """Return the deployment's rate, 0 where nothing runs."""
        if self.state is None or self.deployment is None:
            return 0.0
        return self.state.requests_per_second * self.deployment.traffic.output_tokens


def judged(
    question: ServingQuestion,
    settings: Settings,
    replica: Replica,
    replicas: int,
    deployment: Deployment | None,
    *,
    entry: int = 0,
) -> Candidate:
    """Return replicas with what they deliver, judged by all that was asked."""
    asked, slo = settings.concurrency, question.slo
    has_slo = slo is not None and (slo.ttft_seconds is not None or slo.tpot_seconds is not None)
    rate = settings.requests_per_second
    concurrency, state, is_outrun = asked or replicas, None, False
    keeps_up = None if asked is None else replica.fits and asked <= replica.places * replicas
    if rate is not None:
        state = None if deployment is None else deployment.at_rate(rate)
        keeps_up = state is not None
    if deployment is not None and asked is not None and question.burst_seconds is not None:
        burst = deployment.at_burst(asked, question.burst_seconds)
        state, keeps_up = burst.state, replica.fits and burst.keeps_up
    elif deployment is not None and rate is not None:
        # Where requests outrun the replicas, what those deliver when full.
        is_outrun = state is None
        concurrency = deployment.most_running if state is None else max(1, round(state.running))
        state = state or deployment.at(concurrency)
    elif deployment is not None:
        if asked is None:
            concurrency = _assumed_concurrency(question, deployment, has_slo=has_slo)
        state = deployment.at(concurrency)
    return Candidate(
        question=question,
        settings=settings,
        entry=entry,
        replica=replica,
        replicas=replicas,
        deployment=deployment,
        concurrency=concurrency,
        state=state,
        meets_concurrency=keeps_up,
        # Who waits ever longer keeps no latency, whatever full replicas take.
        meets_slo=(keeps_slo(question, state) and not is_outrun) if has_slo else None,
    )


def simulated(candidate: Candidate) -> Candidate:
    """Return a candidate judged by the simulation of its bursts; as it is where there are none or nothing runs."""
    question, asked, deployment = candidate.question, candidate.settings.concurrency, candidate.deployment
    if candidate.load is not None or deployment is None or asked is None or question.burst_seconds is None:
        return candidate
    replica = SimulatedReplica(
        question=question, settings=candidate.settings, replica=candidate.replica, deployment=deployment
    )
    load = replica.bursts(asked, seconds=question.burst_seconds)
    clears, rate = load.burst_clears_seconds, asked / question.burst_seconds
    keeps_up = (clears is not None and clears <= question.burst_seconds) or load.requests_per_second >= rate
    state = SteadyState(
        ttft_seconds=load.ttft.mean_seconds,
        tpot_seconds=load.tpot.mean_seconds,
        requests_per_second=load.requests_per_second,
        running=float(asked),
        ttft_p99_seconds=load.ttft.p99_seconds,
        tpot_p99_seconds=load.tpot.p99_seconds,
    )
    return replace(
        candidate,
        state=state,
        meets_concurrency=candidate.replica.fits and keeps_up,
        meets_slo=None if candidate.meets_slo is None else keeps_slo(question, state),
        load=load,
    )


def latency_limits(question: ServingQuestion) -> tuple[float | None, float | None]:
    """Return what was asked of the first token and of the time per token; answers of one token have no such time."""
    slo = question.slo
    if slo is None:
        return None, None
    return slo.ttft_seconds, None if question.output_tokens == 1 else slo.tpot_seconds


def keeps_slo(question: ServingQuestion, state: SteadyState | None) -> bool:
    """Return whether a state keeps the service level that was asked for."""
    if state is None or question.slo is None:
        return False
    first, token = latency_limits(question)
    return (first is None or state.ttft_seconds <= first) and (token is None or state.tpot_seconds <= token)


def slo_part(question: ServingQuestion, state: SteadyState | None) -> float:
    """Return the latency that is longest beside what was asked of it, as a multiple of that; 0 where none was."""
    if state is None:
        return 0.0
    taken = zip((state.ttft_seconds, state.tpot_seconds), latency_limits(question), strict=True)
    return max((seconds / limit for seconds, limit in taken if limit is not None), default=0.0)


def _assumed_concurrency(question: ServingQuestion, deployment: Deployment, *, has_slo: bool) -> int:
    """Return the most that keeps the service level, one request for the least latency, else the most that runs."""
    if has_slo:
        return _most_within_slo(question, deployment)
    return 1 if question.objective == "latency" else deployment.most_running


def _most_within_slo(question: ServingQuestion, deployment: Deployment) -> int:
    """Return the highest concurrency that keeps the service level, as many on each replica; one each if none does."""
    low, high = 1, deployment.places
    replicas = deployment.most_running // deployment.places
    if keeps_slo(question, deployment.at(deployment.most_running)):
        return deployment.most_running
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps_slo(question, deployment.at(middle * replicas)) else (low, middle)
    return low * replicas
