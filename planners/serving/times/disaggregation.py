"""Prefill and decode on replicas of their own, the cache handed over by the link between them.

Source: Zhong et al. 2024, DistServe, arXiv:2401.09670: prompts wait for one another
alone (M/D/1), decoding is never interrupted, and the cache crosses once.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from plimsoll.planners.serving.times.batching import TAIL_PART, Deployment, SteadyState
from plimsoll.planners.serving.times.pace import Pace, pace_of
from plimsoll.planners.serving.times.queueing import Waiting, place_wait, prompt_wait

# Prompts are never let closer to what the prefill replicas can do than this, nor random requests to what the places
# of the decoding ones can: the wait grows without bound.
MOST_LOAD = 0.98
# Halvings of the interval in which the number of running requests lies.
HALVINGS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class DisaggregatedDeployment(Deployment):
    """`prefill_replicas` of the `replicas` prefill, the others decode; `places` are a decoding one's.

    `transfer_seconds` is the time a prompt's cache takes from one to the other, and
    `decoding` are the times of a replica that nobody's prompt disturbs.
    """

    prefill_replicas: int
    transfer_seconds: float
    decode_pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        """Look up the times of both kinds of replicas, which every load asks for thousands of times."""
        Deployment.__post_init__(self)
        # A prompt wholly cached leaves nothing of other requests' prefill.
        undisturbed = dataclasses.replace(self.traffic, cached_fraction=1.0)
        object.__setattr__(self, "decode_pace", pace_of(self.work, undisturbed))

    @property
    def decode_replicas(self) -> int:
        """Return the replicas that decode."""
        return self.replicas - self.prefill_replicas

    @property
    def most_running(self) -> int:
        """Return how many requests run at once, all of them on the decoding replicas."""
        return self.places * self.decode_replicas

    @property
    def most_requests_per_second(self) -> float:
        """Return the rate that both pools can bear."""
        prefill = MOST_LOAD * self.prefill_replicas / self.pace.prompt_seconds
        return min(prefill, self._most_decoded_per_second)

    @property
    def _most_decoded_per_second(self) -> float:
        return self.most_running / self._decode_seconds(float(self.places))

    def at(self, concurrency: int) -> SteadyState:
        """Return what `concurrency` clients see; the rate is what makes their times add up (Little's law)."""
        # No load is answered sooner than none, so that clients never send faster than if each were alone.
        high = min(self.most_requests_per_second, concurrency / self._request_seconds(0.0))
        if high * self._request_seconds(high) > concurrency:
            high = self._rate_of(concurrency, high)
        state = self._state(high)
        # Clients beyond what both pools bear wait.
        waiting = max(0.0, concurrency / high - self._request_seconds(high))
        return dataclasses.replace(
            state, ttft_seconds=state.ttft_seconds + waiting, ttft_p99_seconds=None, tpot_p99_seconds=None
        )

    def at_rate(self, requests_per_second: float) -> SteadyState | None:
        """Return what requests see that come at random; None where they outrun a pool."""
        most = min(self.most_requests_per_second, MOST_LOAD * self._most_decoded_per_second)
        if requests_per_second >= most:
            return None
        return self._state(requests_per_second)

    def _state(self, rate: float) -> SteadyState:
        running = self._running(rate)
        token = self._token_seconds(running)
        prompts, place = self._prompt_wait(rate), self._place_wait(rate, running)
        first = self._first_seconds
        mean = prompts.mean_seconds + place.mean_seconds
        waits = max(mean, prompts.quantile_seconds(TAIL_PART) + place.quantile_seconds(TAIL_PART))
        return SteadyState(
            ttft_seconds=first + mean,
            tpot_seconds=token,
            requests_per_second=rate,
            running=running * self.decode_replicas,
            ttft_p99_seconds=first + waits,
            tpot_p99_seconds=token,
        )

    @property
    def _first_seconds(self) -> float:
        return self.pace.first_token_seconds(1) + self.transfer_seconds

    def _token_seconds(self, running: float) -> float:
        return self.decode_pace.token_seconds(max(1.0, running))

    def _decode_seconds(self, running: float) -> float:
        return max(1, self.traffic.output_tokens - 1) * self._token_seconds(running)

    def _running(self, rate: float) -> float:
        """Return how many requests one decoding replica runs at a rate of all."""
        each = rate / self.decode_replicas
        low, high = 0.0, float(self.places)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if each * self._decode_seconds(middle) > middle else (low, middle)
        return high

    def _prompt_wait(self, rate: float) -> Waiting:
        return prompt_wait(requests_per_second=rate / self.prefill_replicas, prompt_seconds=self.pace.prompt_seconds)

    def _place_wait(self, rate: float, running: float) -> Waiting:
        service = self._decode_seconds(running)
        offered = rate / self.decode_replicas * service
        if offered >= self.places * MOST_LOAD:
            # Just full: the clients' own number bounds the wait.
            return Waiting(probability=0.0, seconds_if_any=0.0)
        return place_wait(requests_per_second=rate / self.decode_replicas, service_seconds=service, places=self.places)

    def _rate_of(self, concurrency: int, most: float) -> float:
        """Return the rate, below `most`, whose answers occupy as many clients.

        Halves how many requests run on a decoding replica, which tell the rate at once; the rate would
        have to be halved for them in turn.
        """
        low, high = 0.0, self._running(most)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            rate = min(most, self._rate_at(middle))
            low, high = (middle, high) if rate * self._seconds_of(rate, middle) < concurrency else (low, middle)
        return min(most, self._rate_at(high))

    def _rate_at(self, running: float) -> float:
        """Return the rate of all while each decoding replica runs so many requests (Little's law)."""
        return self.decode_replicas * running / self._decode_seconds(running)

    def _request_seconds(self, rate: float) -> float:
        return self._seconds_of(rate, self._running(rate))

    def _seconds_of(self, rate: float, running: float) -> float:
        """Return the mean time of an answer, at a rate and the requests that each decoding replica runs at it."""
        waits = self._prompt_wait(rate).mean_seconds + self._place_wait(rate, running).mean_seconds
        return self._first_seconds + waits + self._decode_seconds(running)
