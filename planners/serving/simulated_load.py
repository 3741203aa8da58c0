"""What a deployment's requests see under a load, simulated on one of its replicas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.answer import Quantiles, SimulatedLoad
from plimsoll.planners.serving.cache.pools import shared
from plimsoll.planners.serving.replica import Replica
from plimsoll.planners.serving.settings.lengths import sampled_lengths
from plimsoll.planners.serving.settings.settings import Settings
from plimsoll.planners.serving.times.arrivals import (
    Load,
    burst_load,
    closed_loop_load,
    random_load,
    request_lengths,
    running_lengths,
)
from plimsoll.planners.serving.times.batch import Engine, Served
from plimsoll.planners.serving.times.batching import Deployment
from plimsoll.planners.serving.times.simulation import Simulation
from plimsoll.planners.serving.times.step_clock import StepClock

# Requests of bursts and clients of a closed loop that are followed at most; beyond them each stands for several.
MOST_IN_BURSTS, MOST_CLIENTS = 128, 32
# Where a replica has room for more, no fewer followed ones run than so many.
FEWEST_RUNNING = 24
# Of requests at random: how many come before those that count, how many count, and how many come after them;
# of those that run as they begin to come each stands for several beyond so many.
WARMING, COUNTED, FOLLOWING = 32, 320, 128
MOST_BEGUN = 512
LEAST_SECONDS = 1e-9
# How many requests of a closed loop count at least: more where they are not all alike.
FEWEST_COUNTED, FEWEST_UNEVEN = 8, 64
# Bursts over one another that are followed, of which the later half counts.
FEWEST_OVERLAPPING, MOST_OVERLAPPING = 6, 256
# Of longer queues so many requests are followed, or so many times what runs at once, and so many tell of all.
MOST_WAITING, LONG_QUEUES, TOLD = 256, 4, 512
# Cache of so many blocks tells how a request's share grows with its tokens.
PROBED_BLOCKS = 64
# What arrivals are called in answers.
CLOSED_LOOP, RANDOM, BURSTS = "closed_loop", "random", "bursts"
# What a request's share grows by at least, so that it has a unit.
LEAST_GROWTH = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A simulated load: its requests in the order in which they came, each of them for `weight` alike ones."""

    served: list[Served]
    weight: int
    simulation: Simulation

    def told(
        self,
        arrivals: str,
        counted: list[Served],
        *,
        requests_per_second: float,
        clears_seconds: float | None = None,
        all_of: float | None = None,
    ) -> SimulatedLoad:
        """Return what the counted requests saw, at a rate of answers of the whole deployment.

        They stand for `all_of` a replica's requests, if not for as many as were simulated.
        """
        run, units = self.simulation, self.simulation.engine.cache_units
        busy = max(run.busy_seconds, LEAST_SECONDS) * units
        token_seconds = [each.tpot_seconds for each in counted if each.output_tokens > 1]
        return SimulatedLoad(
            arrivals=arrivals,
            requests=len(self.served) * self.weight if all_of is None else round(all_of),
            counted_requests=len(counted) * self.weight if all_of is None else round(all_of),
            ttft=_quantiles([each.first_at - each.sent_at for each in counted]),
            tpot=_quantiles(token_seconds or [0.0]),
            request=_quantiles([each.done_at - each.sent_at for each in counted]),
            requests_per_second=requests_per_second,
            output_tokens_per_second=requests_per_second * sum(each.output_tokens for each in counted) / len(counted),
            gave_way_fraction=sum(each.gave_way > 0 for each in counted) / len(counted),
            recomputed_tokens_fraction=sum(each.recomputed_tokens for each in counted)
            / sum(each.input_tokens for each in counted),
            cache_mean_fraction=run.cache_seconds / busy,
            cache_peak_fraction=run.cache_peak / units,
            burst_clears_seconds=clears_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedReplica:
    """A replica of a deployment that can be asked for loads; `question` has the lengths of its requests."""

    question: ServingQuestion
    settings: Settings
    replica: Replica
    deployment: Deployment

    def at_once(self, requests: int) -> SimulatedLoad:
        """Return what so many requests see that all come at once; all are counted.

        Of a queue far longer than what runs the beginning is simulated: it is answered evenly from then on.
        """
        each = self._each(requests)
        weight = self._weight(each / MOST_IN_BURSTS)
        followed, running = max(1, round(each / weight)), max(1, self._places // weight)
        most = max(MOST_WAITING, LONG_QUEUES * running)
        few = min(followed, most + running)
        run = self._run(burst_load(self._lengths(few), requests=few, seconds=0.0), weight)
        counted = run.served if few == followed else _continued(run.served, most, followed)
        clears = max(each.done_at for each in counted)
        rate = requests / max(clears, LEAST_SECONDS)
        return run.told(BURSTS, counted, requests_per_second=rate, clears_seconds=clears, all_of=each)

    def bursts(self, requests: int, *, seconds: float) -> SimulatedLoad:
        """Return what bursts of so many requests see, one every so many seconds.

        Each is alone where it is answered before the next one comes. Where they come faster than full replicas answer,
        what the first one sees is told, and the rate is that of full replicas; else they lie over one another, and
        those are told that meet those before them as all later ones do.
        """
        alone, asked = self.at_once(requests), requests / seconds
        clears = alone.burst_clears_seconds or 0.0
        if clears <= seconds:
            return _at_pace(alone, asked)
        state = self.deployment.at_rate(asked)
        if state is None:
            full = self.deployment.at(self.deployment.most_running).requests_per_second
            return _at_pace(alone, min(asked, full))
        return self._overlapping(requests, seconds, state.running)

    def _overlapping(self, requests: int, seconds: float, running: float) -> SimulatedLoad:
        """Return what bursts see that lie over one another, while about so many requests run on all replicas."""
        each = self._each(requests)
        # Of a rank, as its share of the requests is.
        under_way = running * each / requests
        weight = self._weight(max(each / MOST_IN_BURSTS, under_way / MOST_BEGUN))
        followed, begun = max(1, round(each / weight)), max(1, round(under_way / weight))
        bursts = max(FEWEST_OVERLAPPING, min(MOST_OVERLAPPING, COUNTED // followed))
        lengths = self._lengths(followed * bursts)
        load = burst_load(
            lengths, requests=followed, seconds=seconds, begun=self._cut(running_lengths(*self._samples(), begun))
        )
        run = self._run(load, weight)
        counted = run.served[begun + len(lengths) // 2 :]
        clears = max(each.done_at - each.sent_at for each in counted)
        return run.told(BURSTS, counted, requests_per_second=requests / seconds, clears_seconds=clears)

    def closed_loop(self, clients: int) -> SimulatedLoad:
        """Return what clients see in a closed loop whose requests are at random places in their answers as it begins.

        All sent at once, their prompts would come together in every round.
        """
        each = self._each(clients)
        weight = self._weight(each / MOST_CLIENTS)
        followed = max(1, round(each / weight))
        running = max(1, min(followed, self._places // weight))
        # Clients without a place wait less in their first round than in all later ones. The last of a long queue wait
        # for those before them as long as the first do for as many.
        waiting = min(followed - running, max(MOST_WAITING, LONG_QUEUES * running))
        further = followed - running - waiting
        # Requests that run from the start meet no prompts, and those behind them few: as many as have theirs computed
        # at a time come before those that count.
        waiting_first = waiting + round(running * self._prompt_part(each))
        counted = max(running, FEWEST_COUNTED if self._is_even else FEWEST_UNEVEN)
        load = closed_loop_load(
            self._lengths(running + waiting + waiting_first + counted),
            clients=running + waiting,
            begun=self._cut(running_lengths(*self._samples(), running)),
            followed=waiting_first + counted,
        )
        run = self._run(load, weight)
        told = run.served[running + waiting_first : running + waiting_first + counted]
        cycle = sum(each.done_at - each.sent_at for each in told) / len(told)
        later = further * cycle / (running + waiting)
        cycle += later
        for request in told:
            request.sent_at -= later
        return run.told(CLOSED_LOOP, told, requests_per_second=clients / max(cycle, LEAST_SECONDS))

    def _prompt_part(self, running: float) -> float:
        """Return what part of the engine's time prompts take while so many requests run on a rank."""
        pace, ranks = self.deployment.pace, self.replica.degrees.attention_data_parallel
        requests = min(running * ranks, float(self.replica.places))
        prompts = requests / ranks * pace.prompt_seconds
        return prompts / pace.engine_seconds(requests, self.settings.output_tokens)

    def at_rate(self, requests_per_second: float, running: float) -> SimulatedLoad:
        """Return what requests see that come at random at a rate which about so many keep up with on all replicas."""
        ranks = self.deployment.replicas * self.replica.degrees.attention_data_parallel
        weight = max(1, math.ceil(running / ranks / MOST_BEGUN))
        begun = max(1, round(running / ranks / weight))
        load = random_load(
            self._lengths(WARMING + COUNTED + FOLLOWING),
            requests_per_second=requests_per_second / ranks / weight,
            begun=self._cut(running_lengths(*self._samples(), begun)),
            followed=WARMING + COUNTED,
        )
        run = self._run(load, weight)
        counted = run.served[begun + WARMING : begun + WARMING + COUNTED]
        return run.told(RANDOM, counted, requests_per_second=requests_per_second)

    def _run(self, load: Load, weight: int) -> Run:
        engine, clock = self.engine(weight)
        simulation = Simulation(engine=engine, clock=clock, load=load)
        return Run(served=simulation.run(), weight=weight, simulation=simulation)

    def _each(self, requests: int) -> float:
        """Return the requests of one rank of attention data parallelism."""
        ranks = min(self.deployment.replicas * self.replica.degrees.attention_data_parallel, requests)
        return requests / ranks

    def _weight(self, least: float) -> int:
        """Return how many requests each followed one stands for: never so many that few run."""
        return max(1, min(math.ceil(least), self._places // FEWEST_RUNNING))

    @property
    def _places(self) -> int:
        """Return how many requests run at once on one rank of attention data parallelism."""
        return self.replica.places // self.replica.degrees.attention_data_parallel

    def _samples(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return tokens in and out, each for an equal part of the requests."""
        return sampled_lengths(self.question, self.settings.input_tokens, self.settings.output_tokens)

    @property
    def _is_even(self) -> bool:
        """Return whether all requests have the same lengths."""
        return self.question.input_length is None and self.question.output_length is None

    def _lengths(self, count: int) -> tuple[tuple[int, int], ...]:
        return self._cut(request_lengths(*self._samples(), count))

    def _cut(self, lengths: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """Return lengths that the longest context holds."""
        longest = self.settings.max_model_len
        return tuple((min(first, longest - 1), min(last, longest - min(first, longest - 1))) for first, last in lengths)

    def engine(self, weight: int) -> tuple[Engine, StepClock]:
        """Return the replica's scheduler, limits and room, and its clock."""
        settings, pace, traffic = self.settings, self.deployment.pace, self.settings.traffic
        clock = StepClock(pace=pace, traffic=traffic)
        stages = pace.work.pipeline_parallel
        units, own = self._room()
        tokens, batch = traffic.prefill_tokens, settings.max_num_batched_tokens * stages
        alone = sum(clock.step_seconds(0, 0.0, min(batch, tokens - done)) for done in range(0, tokens, batch))
        engine = Engine(
            scheduling=replace(settings.profile.scheduling, chunks_prompts=settings.chunks_prompts),
            batch_tokens=batch,
            max_requests=settings.max_num_seqs,
            cache_units=units,
            request_units=own,
            # What a first token takes beside its prompt's steps.
            delay_seconds=max(0.0, pace.first_token_seconds(1) - alone),
            computed_fraction=tokens / traffic.input_tokens,
            tokens_per_step=traffic.tokens_per_step,
            weight=weight,
        )
        return engine, clock

    def _room(self) -> tuple[float, float]:
        """Return the tokens that the whole cache would hold of one request's growth, and what one takes beside them."""
        cache, settings = self.replica.cache, self.settings
        usable = shared(cache, self.replica.pools, settings.sequence_tokens)
        block = cache.block_size
        more = max(PROBED_BLOCKS, -(-settings.output_tokens // block)) * block

        def share(tokens: int) -> float:
            taken = cache.held(tokens)
            return max(need / have if have else math.inf for need, have in zip(taken, usable, strict=True) if need)

        first, last = share(settings.input_tokens), share(settings.input_tokens + more)
        grows = max((last - first) / more, first * LEAST_GROWTH)
        return 1 / grows, first / grows - settings.input_tokens


def _at_pace(load: SimulatedLoad, requests_per_second: float) -> SimulatedLoad:
    """Return the load with another rate of answers."""
    part = requests_per_second / load.requests_per_second
    return replace(
        load, requests_per_second=requests_per_second, output_tokens_per_second=load.output_tokens_per_second * part
    )


def _continued(served: Sequence[Served], most: int, followed: int) -> list[Served]:
    """Return some of the requests of a queue of which the first `most` were simulated, evenly from it.

    Those behind them begin at the pace of the later half of those, and take as long as these on average.
    """
    ordered = sorted(served, key=attrgetter("first_at"))[:most]
    half = ordered[most // 2 :]
    each = (half[-1].first_at - half[0].first_at) / (len(half) - 1)
    first, last = half[0], half[-1]
    answer = sum(one.done_at - one.first_at for one in half) / len(half)
    outputs = sum(one.output_tokens for one in half) / len(half)

    def at(index: int) -> Served:
        if index < most:
            return ordered[index]
        began = last.first_at + (index - most + 1) * each
        tokens = max(1, round(outputs))
        return Served(
            input_tokens=first.input_tokens, output_tokens=tokens, sent_at=0.0, first_at=began, done_at=began + answer
        )

    step = followed / min(TOLD, followed)
    return [at(min(followed - 1, int((index + 1) * step) - 1)) for index in range(min(TOLD, followed))]


def _quantiles(seconds: list[float]) -> Quantiles:
    ordered = sorted(seconds)

    def at(part: float) -> float:
        return ordered[min(len(ordered) - 1, math.ceil(part * len(ordered)) - 1)]

    return Quantiles(
        mean_seconds=sum(ordered) / len(ordered),
        p50_seconds=at(0.5),
        p90_seconds=at(0.9),
        p95_seconds=at(0.95),
        p99_seconds=at(0.99),
    )
