"""What single steps of a replica take as their requests, contexts and prompts change, read from one `Pace`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from plimsoll.planners.serving.times.curve import Curve
from plimsoll.planners.serving.times.pace import Pace, pipe_part
from plimsoll.planners.serving.traffic import Traffic

# Times are looked up at so many numbers of requests between one and its double, and read in straight lines between
# them; what a prompt's tokens add, at so many numbers of requests and of tokens.
STEPS_PER_DOUBLING, REQUESTS_PER_DOUBLING, TOKENS_PER_DOUBLING = 8, 2, 8


class Clock(Protocol):
    """What a simulation asks of an engine's time; one step gives every decoding request a token."""

    def step_seconds(self, requests: int, context_tokens: float, prompt_tokens: int, *, follows: bool = False) -> float:
        """Return the time of a step that decodes `requests` at a mean context and computes so many prompt tokens.

        It `follows` one that computed prompts too.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class StepClock:
    """A replica's steps under one traffic, seen from one rank of attention data parallelism.

    A step of a pipeline is a token's way through all its stages.
    """

    pace: Pace
    traffic: Traffic
    _first: Curve = field(init=False)
    _last: Curve = field(init=False)
    _prompt_token_seconds: float = field(init=False)
    _steps: dict[int, tuple[float, float, float, float]] = field(init=False, default_factory=dict)
    _looked_up: dict[int, tuple[float, float, float, float]] = field(init=False, default_factory=dict)
    _added: dict[tuple[int, int, bool], float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Look up attention at both ends of a request, between which it grows evenly."""
        work, traffic = self.pace.work, self.traffic
        set_field = object.__setattr__
        set_field(self, "_first", work.token_attention(float(traffic.input_tokens)))
        set_field(self, "_last", work.token_attention(float(traffic.input_tokens + traffic.output_tokens)))
        tokens = traffic.prefill_tokens
        set_field(self, "_prompt_token_seconds", work.prompt_attention_seconds(tokens) / tokens)

    def step_seconds(self, requests: int, context_tokens: float, prompt_tokens: int, *, follows: bool = False) -> float:
        """Return the time of a step that decodes `requests` at a mean context and computes so many prompt tokens.

        Where it `follows` one that computed prompts too, a pipeline is full of them.
        """
        step = self._steps.get(requests) or self._between(requests)
        card, grows, host, factor = step
        card += grows * (context_tokens - self.traffic.input_tokens)
        if prompt_tokens:
            card += self._prompt_seconds(requests, prompt_tokens, follows=follows)
        seconds = max(card, host) if self.pace.work.overlaps_host else card + host
        return seconds * factor

    def _between(self, requests: int) -> tuple[float, float, float, float]:
        """Return a step's terms, read between the two nearest numbers of requests that are looked up."""
        low, high = _around(requests, STEPS_PER_DOUBLING)
        for each in (low, high):
            if each not in self._looked_up:
                self._looked_up[each] = self._step(each)
        first, last = self._looked_up[low], self._looked_up[high]
        part = (requests - low) / (high - low) if high > low else 0.0
        found = tuple(before + part * (after - before) for before, after in zip(first, last, strict=True))
        self._steps[requests] = (found[0], found[1], found[2], found[3])
        return self._steps[requests]

    def _step(self, requests: int) -> tuple[float, float, float, float]:
        """Return the card's seconds at a request's first token, what they grow by a token, the host's, a factor."""
        pace, work = self.pace, self.pace.work
        terms, stages = work.efficiency.step, work.pipeline_parallel
        each = max(1.0, requests / stages)
        tokens = each * pace.computed_tokens
        first, last = self._first.at(each), self._last.at(each)
        card = work.linear_seconds(tokens) + terms.operators * (first + work.head.at(tokens)) + pace.gap_seconds
        grows = terms.operators * (last - first) / self.traffic.output_tokens
        host = stages * (terms.host_seconds + each * terms.request_seconds)
        hops = pace.hop_seconds + each * pace.hop_seconds_per_request
        busy = max(1.0, min(float(stages), float(requests)) * work.slowest_stage_part)
        factor = busy * work.token_factor * (1 + pace.drafting_part)
        return card + hops / busy, grows, host, factor

    def _prompt_seconds(self, requests: int, prompt_tokens: int, *, follows: bool) -> float:
        """Return what prompt tokens add to a step's card time: products with full batches, and their attention."""
        key = (_around(requests, REQUESTS_PER_DOUBLING)[1], _around(prompt_tokens, TOKENS_PER_DOUBLING)[1], follows)
        found = self._added.get(key)
        if found is None:
            work = self.pace.work
            decoded = max(1.0, key[0] / work.pipeline_parallel) * self.pace.computed_tokens
            batches = max(1.0, key[1] / work.batch_tokens)
            linear = work.linear_seconds(decoded + key[1] / batches) - work.linear_seconds(decoded)
            part = 1.0 / batches if follows else pipe_part(work.pipeline_parallel, batches)
            found = self._added[key] = part * (batches * linear / key[1] + self._prompt_token_seconds)
        return found * prompt_tokens


def _around(number: int, per_doubling: int) -> tuple[int, int]:
    """Return the nearest numbers, no greater and no less, of which there are so many between one and its double."""
    step = 1 << max(0, number.bit_length() - per_doubling.bit_length())
    low = number // step * step
    return low, low if low == number else low + step
