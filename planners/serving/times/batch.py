"""The requests in an engine, step by step: what runs, what each holds of the cache, who begins and who gives way.

What the schedulers do: vllm/v1/core/sched/scheduler.py; python/sglang/srt/managers/schedule_policy.py and scheduler.py;
tensorrt_llm/_torch/pyexecutor/scheduler.py and cpp/tensorrt_llm/batch_manager/microBatchScheduler.cpp.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from plimsoll.planners.serving.releases.rules import Admission, Scheduling

# More steps than any prompt has chunks.
MOST_STEPS = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What decides a replica's steps besides its time: its scheduler, its limits and its room.

    A request takes `request_units` of the cache's `cache_units` and one more for each of its tokens. `delay_seconds`
    pass between a request's sending and the scheduler. `tokens_per_step` come of a decode step. Each simulated request
    stands for `weight` alike ones; `max_requests` and `cache_units` are of real ones.
    """

    scheduling: Scheduling
    batch_tokens: int
    max_requests: int
    cache_units: float
    request_units: float = 0.0
    delay_seconds: float = 0.0
    computed_fraction: float = 1.0
    tokens_per_step: float = 1.0
    weight: int = 1


@dataclass(slots=True, kw_only=True)
class Served:
    """One request's way: its tokens, its times, how often it gave way and how many tokens were computed again.

    Of its prompt `to_compute` tokens are to be computed, of which `computed` are. It had put out `made` tokens when it
    joined those that decode, at `joined_step`, -1 while it does not. It holds `taken` units of the cache. Of one that
    gave way `kept` tokens were cached when the batch had grown by `kept_at`.
    """

    input_tokens: int
    output_tokens: int
    sent_at: float
    first_at: float = -1.0
    done_at: float = -1.0
    is_followed: bool = False
    gave_way: int = 0
    recomputed_tokens: int = 0
    to_compute: int = 0
    computed: int = 0
    made: int = 0
    joined_step: int = -1
    taken: float = 0.0
    kept: int = 0
    kept_at: float = 0.0

    @property
    def length(self) -> int:
        """Return its tokens in and out, those that it put out since it joined apart."""
        return self.input_tokens + self.made

    @property
    def tpot_seconds(self) -> float:
        """Return the mean time between its tokens, 0 where it had one alone."""
        return (self.done_at - self.first_at) / max(1, self.output_tokens - 1)


@dataclass(slots=True, kw_only=True)
class Batch:
    """Requests that an engine runs: `decoding` of them decode, at contexts of `contexts` tokens together.

    `used` units of the cache are taken. `grows` says whether running requests take room for each token that they put
    out, and `takes_chunks` whether prompts do for each chunk.
    """

    engine: Engine
    grows: bool = field(init=False)
    takes_chunks: bool = field(init=False)
    decoding: int = 0
    contexts: float = 0.0
    used: float = 0.0
    running: dict[int, Served] = field(default_factory=dict)
    prompts: deque[Served] = field(default_factory=deque)
    _step: int = 0
    _grown: float = 0.0
    _remaining: float = 0.0
    _expected: float = 0.0
    _ends: list[tuple[int, int, int]] = field(default_factory=list)
    # Whether ends may lie among them of requests that gave way since they were foreseen.
    _has_stale: bool = False

    def __post_init__(self) -> None:
        """Note what the kind of admission decides, which every step asks for."""
        scheduling = self.engine.scheduling
        self.grows = scheduling.admission is not Admission.WHOLE
        self.takes_chunks = scheduling.admission is Admission.CHUNK
        self._expected = scheduling.expected_output

    @property
    def room(self) -> float:
        """Return the units of the cache that are free."""
        return self.engine.cache_units - self.used

    @property
    def next_units(self) -> float:
        """Return what the tokens of the next step take."""
        return self.decoding * self.engine.tokens_per_step * self.engine.weight

    # Steps.

    def steps_alike(self, chunk: int = 0) -> int:
        """Return how many steps pass until a request ends or the cache is full, each with so much of a prompt."""
        ends = self._ends
        while self._has_stale and ends and self._is_stale(ends[0]):
            heapq.heappop(ends)
        steps = ends[0][0] - self._step if ends else MOST_STEPS
        if self.grows and len(self.running) > 1:
            taken = self.next_units + (chunk * self.engine.weight if self.takes_chunks else 0)
            steps = min(steps, int(self.room // taken)) if taken else steps
        return max(1, steps)

    def decode(self, steps: int) -> None:
        """Put out the tokens of so many steps."""
        scheduling, grown = self.engine.scheduling, steps * self.decoding * self.engine.tokens_per_step
        self._step += steps
        self.contexts += grown
        self._remaining = max(0.0, self._remaining - grown)
        fall = (scheduling.expected_output - scheduling.least_expected_output) / scheduling.expectation_steps
        self._expected = max(scheduling.least_expected_output, self._expected - fall * steps)
        if self.grows:
            self.used += grown * self.engine.weight
            self._grown += grown * self.engine.weight

    def put_out(self, request: Served) -> float:
        """Return the tokens that a decoding request has put out."""
        return request.made + (self._step - request.joined_step) * self.engine.tokens_per_step

    # Requests that begin.

    def left(self, request: Served) -> int:
        """Return the tokens to compute of a waiting request: less what of its cache no other has taken since."""
        kept = max(0, request.kept - math.ceil((self._grown - request.kept_at) / self.engine.weight))
        return max(1, request.to_compute - kept)

    def admits(self, request: Served, left: int, chunk: int) -> bool:
        """Return whether a waiting request may begin, of which so many tokens are left and so many come first."""
        engine, scheduling = self.engine, self.engine.scheduling
        if not self.running:
            return True
        own, weight = engine.request_units, engine.weight
        if scheduling.admission is Admission.CHUNK:
            return (own + request.length - left + chunk) * weight <= self.room
        if scheduling.admission is Admission.PROMPT:
            return (own + request.length) * weight <= self.room
        if scheduling.admission is Admission.WHOLE:
            return (own + request.input_tokens + request.output_tokens) * weight <= self.room
        most = scheduling.most_expected_tokens
        yet = min(request.output_tokens - request.made, most)
        begun = sum(min(each.output_tokens - each.made, most) for each in self.prompts)
        others = min(self._remaining, self.decoding * most) * self._expected + begun
        return (own + request.length + yet + others) * weight < self.room

    def begin(self, request: Served, left: int) -> None:
        """Let a request in, of whose prompt so many tokens are left to compute."""
        if request.gave_way:
            request.recomputed_tokens += left
        request.computed = request.to_compute - left
        self.running[id(request)] = request
        self.prompts.append(request)
        tokens = request.length
        if self.takes_chunks:
            tokens -= left
        elif not self.grows:
            tokens = request.input_tokens + request.output_tokens
        request.taken = (self.engine.request_units + tokens) * self.engine.weight
        self.used += request.taken

    def has_room(self, chunk: int) -> bool:
        """Return whether so many more tokens of a running prompt may be computed."""
        return not self.takes_chunks or len(self.running) == 1 or chunk * self.engine.weight <= self.room

    def compute(self, request: Served, chunk: int) -> None:
        """Compute so many tokens of a prompt."""
        request.computed += chunk
        if self.takes_chunks:
            taken = chunk * self.engine.weight
            request.taken += taken
            self.used += taken
            self._grown += taken

    def join(self, request: Served) -> bool:
        """Put out the token that follows a prompt; return whether it was not the last."""
        self.prompts.remove(request)
        request.made += 1
        left = request.output_tokens - request.made
        if left <= 0:
            return False
        request.joined_step = self._step
        self.decoding += 1
        self.contexts += request.length
        self._remaining += left
        end = self._step + math.ceil(left / self.engine.tokens_per_step)
        heapq.heappush(self._ends, (end, len(self._ends), id(request)))
        return True

    # Requests that end and give way.

    def ended(self) -> Iterator[Served]:
        """Yield the requests that have put out all their tokens; they run until they are released."""
        while self._ends and (self._ends[0][0] <= self._step or (self._has_stale and self._is_stale(self._ends[0]))):
            end = heapq.heappop(self._ends)
            if not (self._has_stale and self._is_stale(end)):
                request = self.running[end[2]]
                self._leave(request)
                yield request

    def release(self, request: Served) -> None:
        """Free what a request holds that has ended."""
        del self.running[id(request)]
        self.used = self.used - request.taken if self.running else 0.0
        if not self.running:
            self._expected = self.engine.scheduling.expected_output

    def give_way(self) -> Served:
        """Free what the last request holds, and return it."""
        _, request = self.running.popitem()
        self._has_stale = True
        if request.joined_step >= 0:
            self._leave(request)
            computed = request.length
        else:
            self.prompts.remove(request)
            computed = request.computed
        if self.engine.scheduling.keeps_given_way:
            request.kept, request.kept_at = computed, self._grown
        request.gave_way += 1
        request.to_compute, request.computed = request.length, 0
        self.used -= request.taken
        request.taken = 0.0
        if self.engine.scheduling.admission is Admission.ESTIMATE and self.running:
            self._expected = self._estimate()
        return request

    def _leave(self, request: Served) -> None:
        tokens = min(self.put_out(request), request.output_tokens) - request.made
        self.decoding -= 1
        self.contexts = self.contexts - request.length - tokens if self.decoding else 0.0
        self._remaining = max(0.0, self._remaining - (request.output_tokens - request.made - tokens))
        request.made += int(tokens)
        if self.grows:
            request.taken += tokens * self.engine.weight
        request.joined_step = -1

    def _is_stale(self, end: tuple[int, int, int]) -> bool:
        """Return whether a request has given way since its end was foreseen."""
        request = self.running.get(end[2])
        if request is None or request.joined_step < 0:
            return True
        left = request.output_tokens - request.made
        return request.joined_step + math.ceil(left / self.engine.tokens_per_step) != end[0]

    def _estimate(self) -> float:
        """Return what part of their longest answers the running requests are thought to reach."""
        made = longest = 0.0
        for each in self.running.values():
            made += self.put_out(each) if each.joined_step >= 0 else each.made
            longest += each.output_tokens
        return min(1.0, (made + len(self.running) * self.engine.scheduling.spare_steps) / (longest + 1))
