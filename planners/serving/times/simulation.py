"""One replica answering requests, step by step, as its engine's scheduler fills the steps.

Between two events (a request that comes, begins, ends or gives way) steps are alike, and are passed over at once: the
time of a step grows evenly with the contexts, so that their mean stands for all.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field

from plimsoll.planners.serving.times.arrivals import Load
from plimsoll.planners.serving.times.batch import Batch, Engine, Served
from plimsoll.planners.serving.times.step_clock import Clock


@dataclass(slots=True, kw_only=True)
class Simulation:
    """A replica's run; `run` returns its requests."""

    engine: Engine
    clock: Clock
    load: Load
    now: float = 0.0
    busy_seconds: float = 0.0
    cache_seconds: float = 0.0
    cache_peak: float = 0.0
    _batch: Batch = field(init=False)
    _computed_prompts: bool = False
    _next: int = 0
    _unanswered: int = 0
    _coming: list[float] = field(default_factory=list)
    _waiting: deque[Served] = field(default_factory=deque)
    _served: list[Served] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with an empty engine."""
        self._batch = Batch(engine=self.engine)
        self._coming = list(self.load.sent_seconds)
        self._unanswered = self.load.followed or 0

    def run(self) -> list[Served]:
        """Return the requests that came, answered; those of a load without end that outlast the run are foreseen."""
        while not self._is_over():
            self._receive()
            if not self._batch.running and not self._waiting:
                if not self._coming:
                    break
                self.now = self._coming[0] + self.engine.delay_seconds
                continue
            self._advance()
        self._foresee()
        return self._served

    def _is_over(self) -> bool:
        """Return whether a load without end has shown what it is followed for."""
        if self.load.followed is None:
            return False
        has_begun_all = self._next >= len(self.load.lengths) and not self._waiting and not self._batch.prompts
        return self._unanswered == 0 or has_begun_all

    def _foresee(self) -> None:
        """End the requests that run yet as they have gone so far, those that have just begun by the next step."""
        batch, engine = self._batch, self.engine
        for request in batch.running.values():
            if request.joined_step < 0:
                continue
            tokens = batch.put_out(request) - 1
            each = (self.now - request.first_at) / tokens if tokens >= 1 else 0.0
            if not each:
                context = batch.contexts / batch.decoding
                each = self.clock.step_seconds(batch.decoding * engine.weight, context, 0) / engine.tokens_per_step
            request.done_at = request.first_at + each * (request.output_tokens - 1)

    def _receive(self) -> None:
        """Queue the requests that have reached the scheduler."""
        load, coming, engine = self.load, self._coming, self.engine
        while coming and coming[0] + engine.delay_seconds <= self.now and self._next < len(load.lengths):
            sent = heapq.heappop(coming)
            first, last = load.lengths[self._next]
            self._next += 1
            tokens = max(1, math.ceil(first * engine.computed_fraction)) if self._next > load.begun else 1
            request = Served(input_tokens=first, output_tokens=last, sent_at=sent, to_compute=tokens)
            request.is_followed = load.followed is not None and self._next <= load.followed
            self._served.append(request)
            self._waiting.append(request)
        if self._next >= len(load.lengths):
            coming.clear()

    def _advance(self) -> None:
        """Pass over the steps up to the next event."""
        engine, batch = self.engine, self._batch
        if not self._waiting and not batch.prompts:
            self._make_room()
            self._decode_steps()
            return
        if engine.scheduling.mixes_prompts:
            has_given_way = self._make_room()
            budget = engine.batch_tokens - batch.decoding * engine.weight
            # Where one gave way for the step, no waiting one begins.
            chunks = self._chunks(budget, begins=not has_given_way)
        else:
            chunks = self._chunks(engine.batch_tokens)
        if chunks:
            self._prompt_steps(chunks, decodes=engine.scheduling.mixes_prompts)
        elif batch.decoding:
            self._make_room()
            self._decode_steps()
        elif batch.running and batch.prompts:
            # The only prompt there is had to give its own room away.
            self._give_way()

    def _decode_steps(self) -> None:
        batch = self._batch
        steps = batch.steps_alike()
        if self._coming:
            context = batch.contexts / batch.decoding
            each = self.clock.step_seconds(batch.decoding * self.engine.weight, context, 0)
            ahead = (self._coming[0] + self.engine.delay_seconds - self.now) / each
            steps = max(1, min(steps, math.ceil(ahead))) if ahead < steps else steps
        self._pass(steps, 0)
        self._end_requests()

    def _prompt_steps(self, chunks: list[tuple[Served, int]], *, decodes: bool) -> None:
        """Compute prompts' tokens; a long prompt alone in its steps is passed over as far as they are alike."""
        batch, steps = self._batch, 1
        tokens = sum(chunk for _, chunk in chunks)
        request, chunk = chunks[0]
        if len(chunks) == 1 and request.to_compute - request.computed >= 2 * chunk:
            alike = batch.steps_alike(chunk) if decodes else request.to_compute
            steps = max(1, min(1 + (request.to_compute - request.computed) // chunk, alike))
            batch.compute(request, chunk * (steps - 1))
        self._pass(steps, tokens * self.engine.weight, decodes=decodes)
        if decodes:
            self._end_requests()
        for request, _ in chunks:
            if request.computed >= request.to_compute:
                self._begin_answer(request)

    def _pass(self, steps: int, prompt_tokens: int, *, decodes: bool = True) -> None:
        batch, engine = self._batch, self.engine
        running = batch.decoding if decodes else 0
        context = 0.0 if not running else batch.contexts / running + (steps - 1) / 2 * engine.tokens_per_step
        follows = self._computed_prompts or steps > 1
        seconds = steps * self.clock.step_seconds(running * engine.weight, context, prompt_tokens, follows=follows)
        self._computed_prompts = prompt_tokens > 0
        self.now += seconds
        self.busy_seconds += seconds
        if running:
            batch.decode(steps)
        self.cache_seconds += seconds * batch.used
        self.cache_peak = max(self.cache_peak, batch.used)

    def _chunks(self, budget: int, *, begins: bool = True) -> list[tuple[Served, int]]:
        """Return prompts of the next step with the tokens computed of each, running ones first."""
        batch, engine, weight, full = self._batch, self.engine, self.engine.weight, budget
        chunks: list[tuple[Served, int]] = []
        for request in batch.prompts:
            chunk = min(request.to_compute - request.computed, budget // weight)
            if chunk <= 0 or not batch.has_room(chunk):
                break
            batch.compute(request, chunk)
            chunks.append((request, chunk))
            budget -= chunk * weight
        while begins and self._waiting and budget >= weight and len(batch.running) * weight < engine.max_requests:
            request = self._waiting[0]
            left = batch.left(request)
            chunk = min(left, budget // weight)
            if not engine.scheduling.chunks_prompts and left > budget:
                # A prompt is never cut but where no step holds it.
                if budget < full or left <= engine.batch_tokens:
                    break
                chunk = left
            if not batch.admits(request, left, chunk):
                break
            self._waiting.popleft()
            batch.begin(request, left)
            batch.compute(request, chunk)
            chunks.append((request, chunk))
            budget -= chunk * weight
        return chunks

    def _begin_answer(self, request: Served) -> None:
        if request.first_at < 0:
            request.first_at = self.now
        if not self._batch.join(request):
            self._finish(request)

    def _end_requests(self) -> None:
        for request in self._batch.ended():
            self._finish(request)

    def _finish(self, request: Served) -> None:
        request.done_at = self.now
        self._unanswered -= request.is_followed
        self._batch.release(request)
        if self._next + len(self._coming) < len(self.load.lengths):
            heapq.heappush(self._coming, self.now)

    def _make_room(self) -> bool:
        """Send running requests back, the last first, until the next step has room; return whether any went."""
        batch, has_given_way = self._batch, False
        while batch.grows and batch.next_units > batch.room and batch.decoding and len(batch.running) > 1:
            self._give_way()
            has_given_way = True
        return has_given_way

    def _give_way(self) -> None:
        request = self._batch.give_way()
        if self.engine.scheduling.resumes_first:
            self._waiting.appendleft(request)
        else:
            self._waiting.append(request)
