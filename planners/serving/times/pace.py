"""A replica's latencies as functions of how many requests run, under one traffic.

A decode step takes what its operators and the gaps between them take, and no less than the host needs to prepare it.
Other requests' prompts hold it up.

A pipeline of p stages deals its requests out into p batches, one in each stage. A token passes
all stages: p stage times, each with its own start and its host's work for a p-th of the requests,
and p - 1 hand-overs. A batch that carries a prompt holds up all others in every stage that it
passes, as stages wait for the slowest of the p batches under way; only prompts in several of these
share what they hold up (Agrawal et al. 2024, Sarathi-Serve, arXiv:2403.02310, section 3.3). No
fitted run had stages: these terms are first principles alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.serving.times.curve import Curve
from plimsoll.planners.serving.times.replica_work import ReplicaWork
from plimsoll.planners.serving.traffic import Traffic

# Deployments of one search ask for the same paces again and again.
MOST_KEPT_PACES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """A replica's times under one traffic.

    `attention` is over the sequences that one rank decodes. `prompt_seconds` is what one prompt takes of the engine's
    time, whose inverse is the most prompts in a second; `prompt_pass_seconds` is its passing through all stages, and
    `full_batch_seconds` that of as many prompts' tokens as a step takes.
    """

    work: ReplicaWork
    attention: Curve
    computed_tokens: int
    gap_seconds: float
    first_seconds: float
    prompt_pass_seconds: float
    prompt_seconds: float
    full_batch_seconds: float
    hop_seconds: float
    hop_seconds_per_request: float
    prompts_per_step: float
    prompt_batches: float
    tokens_per_step: float
    drafting_part: float

    def rank_requests(self, running: float) -> float:
        """Return the requests of one rank's step."""
        return max(1.0, running / self.work.pipeline_parallel / self.work.attention_data_parallel)

    def step_seconds(self, running: float) -> float:
        """Return the time of one step through all stages that carries no prompt, hops and drafting apart.

        Stages that are all busy wait for the one with the most to read.
        """
        work, requests = self.work, self.rank_requests(running)
        step, stages = work.efficiency.step, work.pipeline_parallel
        # A drafted token is one more row of products; its sequence's cache is read once for all of them.
        tokens = requests * self.computed_tokens
        sampled = step.operators * (self.attention.at(requests) + work.head.at(tokens))
        card = work.linear_seconds(tokens) + sampled + self.gap_seconds
        host = stages * (step.host_seconds + requests * step.request_seconds)
        seconds = max(card, host) if work.overlaps_host else card + host
        busy = min(float(stages), max(1.0, running))
        return seconds * max(1.0, busy * work.slowest_stage_part)

    def others_seconds(self, running: float) -> float:
        """Return by how long other requests' prompts hold up a step through all stages.

        Each of the others sends one in the time of its own steps. A prompt alone in the pipe holds up by its passing
        through all stages, many by one stage's part each. A step that computes prompts beside has room for a batch of
        them.
        """
        others = max(1.0, running / self.work.attention_data_parallel) - 1
        sent = others * self.prompts_per_step
        part = pipe_part(self.work.pipeline_parallel, sent * self.prompt_batches)
        seconds = self.work.efficiency.step.others_prompts * sent * part * self.prompt_pass_seconds
        return min(seconds, self.most_prompts_seconds)

    @property
    def most_prompts_seconds(self) -> float:
        """Return what prompts add to a step at most: no bound where they have steps of their own, before all others."""
        return self.full_batch_seconds if self.work.mixes_prompts else math.inf

    def token_seconds(self, running: float) -> float:
        """Return the time between two tokens of one of `running` requests that run at once.

        With a pipeline the batch is dealt out to the stages, and a request waits
        until its part has passed all of them. Tokens are drafted by one layer, as by
        multi-token prediction (arXiv:2412.19437, section 2.2) and EAGLE (arXiv:2401.15077).
        """
        return self._token_seconds(running, self.others_seconds(running))

    def longest_token_seconds(self, running: float) -> float:
        """Return the same where every step carries as many prompts as it has room for."""
        return self._token_seconds(running, self.most_prompts_seconds)

    def _token_seconds(self, running: float, prompts_seconds: float) -> float:
        hops = self.hop_seconds + self.rank_requests(running) * self.hop_seconds_per_request
        seconds = self.step_seconds(running) + prompts_seconds + hops
        return self.work.token_factor * seconds * (1 + self.drafting_part) / self.tokens_per_step

    def first_token_seconds(self, running: float) -> float:
        """Return the mean time to the first token while `running` requests share the replica."""
        first, others = self.work.efficiency.first_token, self.rank_requests(running) - 1
        waited = first.queued_prompts * others * self.prompt_pass_seconds + first.awaited_steps * self.step_seconds(
            running
        )
        return self.work.first_token_factor * (self.first_seconds + waited)

    def engine_seconds(self, running: float, output_tokens: int) -> float:
        """Return the least that `running` requests of so many tokens take: their prompts and their steps."""
        steps = (output_tokens - 1) / self.tokens_per_step
        decoding = steps * self.step_seconds(running) * (1 + self.drafting_part)
        prompts = running / self.work.attention_data_parallel
        # Of the batches under way in a pipeline, those with a prompt.
        batches = prompts * self.prompts_per_step * self.prompt_pass_seconds / self.full_batch_seconds
        shared = min(max(batches, 1.0), float(self.work.pipeline_parallel))
        return prompts * self.prompt_pass_seconds / shared + decoding


def pipe_part(stages: int, following: float) -> float:
    """Return the part of a passing through all stages that each of so many batches takes, one after another.

    All have passed after `following` + `stages` - 1 stage times (Huang et al. 2019, GPipe, arXiv:1811.06965,
    section 2.3); one alone takes the whole passing.
    """
    batches = max(1.0, following)
    return (batches + stages - 1) / (batches * stages)


def pace_of(work: ReplicaWork, traffic: Traffic) -> Pace:
    """Return a replica's times under a traffic."""
    return _pace(ByIdentity(work), traffic)


@lru_cache(maxsize=MOST_KEPT_PACES)
def _pace(same: ByIdentity[ReplicaWork], traffic: Traffic) -> Pace:
    work = same.value
    first, step, tokens = work.efficiency.first_token, work.efficiency.step, traffic.prefill_tokens
    batches = tokens / work.batch_tokens
    alone = work.prompt_alone_seconds(tokens) * pipe_part(work.pipeline_parallel, batches)
    passing = work.prompt_pass_seconds(tokens)
    hop, hops = work.hop_seconds(1), work.pipeline_parallel - 1
    return Pace(
        work=work,
        attention=work.token_attention(traffic.context_tokens),
        computed_tokens=traffic.draft_tokens + 1,
        gap_seconds=work.gap_seconds,
        first_seconds=first.host_seconds + first.prompt * alone + tokens * hop + work.network_seconds,
        prompt_pass_seconds=passing,
        prompt_seconds=passing / work.pipeline_parallel,
        full_batch_seconds=passing / batches,
        # A hand-over's start takes what a rank waits at an exchange.
        hop_seconds=hops * step.exchange_seconds + work.network_seconds,
        hop_seconds_per_request=hop,
        prompts_per_step=traffic.tokens_per_step / traffic.output_tokens,
        prompt_batches=max(1.0, batches),
        tokens_per_step=traffic.tokens_per_step,
        drafting_part=traffic.draft_tokens / work.layers,
    )
