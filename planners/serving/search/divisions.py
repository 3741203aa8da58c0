"""The search over divisions of replicas into prefilling and decoding ones: by halving, not one by one.

Of N replicas p prefill. At a rate X, and with s seconds of prefill a prompt, a prompt
waits s load / 2 (1 - load) with load = X s / p, which falls with p and is convex. A
decoding replica runs the r requests of which X / (N - p) x seconds(r) = r; where seconds(r)
= a + b r that makes a / (1 - b X / (N - p)) seconds, which rises with p and is convex, as
do the wait for a place and the pool's load. Their sum is convex in p, and so the divisions
that bear a rate, or answer it in a given time, lie side by side: away from the best one it
gets worse on either side, and comparing two neighbours tells on which side the best lies.

That holds but for trifles: a mixture reads more experts the more requests run, and less
for each; clients are whole; and a pool that is just full has no wait for a place. So
`NEIGHBOURS` around what halving found are compared as well, and both ends, where the latency at
the most load that a service level allows may be least.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from plimsoll.planners.ground.errors import PlanningStopped
from plimsoll.planners.ground.stopping import ShouldStop
from plimsoll.planners.questions import Disaggregation, ServingQuestion
from plimsoll.planners.serving.replica import Replica
from plimsoll.planners.serving.search.candidates import Candidate, judged
from plimsoll.planners.serving.search.ranking import objective, rank, request_seconds
from plimsoll.planners.serving.settings.settings import Settings
from plimsoll.planners.serving.times.disaggregation import DisaggregatedDeployment
from plimsoll.planners.serving.times.replica_work import ReplicaWork

# Each pool has a replica at least.
FEWEST_REPLICAS = 2
# Divisions on either side that are compared where halving ended.
NEIGHBOURS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """One kind of replica that a question divides; `seen` are the divisions looked at, by replicas and prefilling ones.

    `work` is None where the replica cannot run: then nothing tells divisions apart.
    """

    question: ServingQuestion
    asked: Disaggregation
    settings: Settings
    replica: Replica
    work: ReplicaWork | None
    entry: int
    should_stop: ShouldStop
    seen: dict[tuple[int, int], Candidate] = field(default_factory=dict)

    def candidates(self, choices: range) -> Iterator[Candidate]:
        """Yield the divisions looked at of the fewest replicas that satisfy, and of the most where more is better.

        Raises `PlanningStopped` once `should_stop` says so, which is asked before each division.
        """
        counts = self._counts(choices)
        if not counts:
            return
        chosen = {counts[0] if self.work is None else self._fewest_satisfying(counts)}
        if not self.question.hardware.gpus.is_free:
            chosen.add(counts[-1])
        for replicas in sorted(chosen):
            self._best(replicas)
            of_these = (candidate for (count, _), candidate in self.seen.items() if count == replicas)
            yield from sorted(of_these, key=rank)

    def _counts(self, choices: range) -> range:
        """Return the numbers of replicas that can be divided as asked."""
        prefill, decode = self.asked.prefill_gpus, self.asked.decode_gpus
        if any(pool is not None and pool % self.replica.gpus for pool in (prefill, decode)):
            return range(0)
        parts = [1 if pool is None else pool // self.replica.gpus for pool in (prefill, decode)]
        fewest = max(choices[0], FEWEST_REPLICAS, sum(parts))
        most = choices[-1] if None in (prefill, decode) else min(choices[-1], sum(parts))
        return range(fewest, most + 1)

    def _divisions(self, replicas: int) -> range:
        """Return how many of so many replicas may prefill."""
        prefill, decode = self.asked.prefill_gpus, self.asked.decode_gpus
        if prefill is not None:
            fixed = prefill // self.replica.gpus
            return range(fixed, fixed + 1)
        if decode is not None:
            fixed = replicas - decode // self.replica.gpus
            return range(fixed, fixed + 1)
        return range(1, replicas)

    def _fewest_satisfying(self, counts: range) -> int:
        """Return the fewest replicas of which a division keeps all that was asked; the fewest of all where none does.

        A replica more lightens the load of the pool that it joins, so that at a request rate no answer takes longer.
        """
        low = high = counts[0]
        while not self._closest(high).is_satisfying:
            if high == counts[-1]:
                return counts[0]
            low, high = high, min(2 * high, counts[-1])
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._closest(middle).is_satisfying else (middle, high)
        return high

    def _closest(self, replicas: int) -> Candidate:
        """Return the division that keeps what was asked, or comes closest to it, and then serves the objective best."""
        return self._least(replicas, is_paced=True, keeps_level=True)

    def _best(self, replicas: int) -> None:
        """Look for the best division: what cannot be kept is let go, the service level before the request rate."""
        if self.work is None:
            self._at(replicas, self._divisions(replicas)[0])
            return
        if self._closest(replicas).is_satisfying:
            return
        self._least(replicas, is_paced=True, keeps_level=False)
        self._least(replicas, is_paced=False, keeps_level=False)

    def _least(self, replicas: int, *, is_paced: bool, keeps_level: bool) -> Candidate:
        """Return the division of the least shortfalls and then the best objective; the module says why by halving."""

        def badness(prefill: int) -> tuple[float, ...]:
            candidate = self._at(replicas, prefill)
            load = _load(candidate) if is_paced else 0.0
            excess = candidate.latency_excess if keeps_level else 1.0
            return max(1.0, load), excess, *objective(candidate), request_seconds(candidate)

        allowed = self._divisions(replicas)
        low, high = allowed[0], allowed[-1]
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if badness(middle) <= badness(middle + 1) else (middle + 1, high)
        around = range(max(allowed[0], low - NEIGHBOURS), min(allowed[-1], low + NEIGHBOURS) + 1)
        return self._at(replicas, min((*around, allowed[0], allowed[-1]), key=badness))

    def _at(self, replicas: int, prefill: int) -> Candidate:
        """Return a division, judged once."""
        known = self.seen.get((replicas, prefill))
        if known is not None:
            return known
        if self.should_stop():
            raise PlanningStopped
        deployment = None
        if self.work is not None:
            deployment = DisaggregatedDeployment(
                work=self.work,
                places=self.replica.places,
                replicas=replicas,
                traffic=self.settings.traffic,
                prefill_replicas=prefill,
                transfer_seconds=self._transfer_seconds(replicas),
            )
        candidate = judged(self.question, self.settings, self.replica, replicas, deployment, entry=self.entry)
        self.seen[replicas, prefill] = candidate
        return candidate

    def _transfer_seconds(self, replicas: int) -> float:
        """Return the time of a prompt's cache between replicas: each GPU sends its share to its peer at once."""
        hardware = self.question.hardware
        is_near = replicas * self.replica.gpus <= hardware.gpus_per_node
        rate = hardware.gpu.link_bytes_per_second if is_near else hardware.gpu.nic_bytes_per_second
        return self.settings.traffic.input_tokens * self.replica.kv.bytes_per_token_per_gpu / rate


def _load(candidate: Candidate) -> float:
    """Return the asked request rate as a part of what both pools bear, 0 where none was asked."""
    rate, deployment = candidate.settings.requests_per_second, candidate.deployment
    if rate is None or not isinstance(deployment, DisaggregatedDeployment):
        return 0.0
    return rate / deployment.most_requests_per_second
