"""A replica's times as functions of how many requests run: terms summed up once, so that a time costs a microsecond.

Of a step's terms some are constant, some grow with the requests of one rank and some
with the others beside a request; two do not add up so: the experts read and the
computation beyond what reading hides. `decode_terms` and `prefill_terms` are the same
terms one by one, as the fit weighs them.

A pipeline of p stages deals its requests out into p batches, one in each stage. A token passes
all stages: p stage times, each with its own start and its host's work for a p-th of the requests,
and p - 1 hand-overs. A batch that carries a prompt holds up all behind it, in every stage; only
prompts that follow one another fill the pipe (Agrawal et al. 2024, Sarathi-Serve,
arXiv:2403.02310, section 3.3). No fitted run had stages: these terms are first principles alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.serving.times.efficiency import Efficiency
from plimsoll.planners.serving.traffic import Traffic

if TYPE_CHECKING:
    from plimsoll.planners.serving.times.latency import ReplicaWork

# The slowest NVLink of the fitted runs: NVLink 4, one direction (H100 whitepaper).
REFERENCE_LINK_BYTES_PER_SECOND = 450e9
# A prompt's first chunk reads the weights; engines on large cards batch 8,192 tokens.
CHUNK_TOKENS = 8192
# Deployments of one search ask for the same paces again and again.
MOST_KEPT_PACES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTerms:
    """What a step's time is made of, in seconds at the card's own rates or as counts.

    `per_request` is for each request of one rank, `per_other` for each but one.
    """

    constant: Mapping[str, float]
    per_request: Mapping[str, float]
    per_other: Mapping[str, float]
    dense_seconds: float
    compute_seconds_per_request: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTerms:
    """What the time to a first token is made of, the step under way and the prompt's own all-reduces apart."""

    constant: Mapping[str, float]
    per_other: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """A replica's times under one traffic; seconds are weighed by the engine's efficiencies.

    `prompt_seconds` is what one prompt takes of the engine's time, whose inverse is the most prompts in a second.
    """

    work: ReplicaWork
    computed_tokens: int
    step_seconds: float
    step_seconds_per_request: float
    step_seconds_per_other: float
    dense_seconds: float
    compute_seconds_per_request: float
    expert_seconds: float
    first_seconds: float
    first_seconds_per_other: float
    prompt_seconds: float
    hop_seconds: float
    hop_seconds_per_request: float
    prompts_per_step: float
    prompt_chunks: int
    tokens_per_step: float
    drafting_part: float

    def rank_requests(self, running: float) -> float:
        """Return the requests of one rank's step."""
        return max(1.0, running / self.work.pipeline_parallel / self.work.attention_data_parallel)

    def others_prompts(self, running: float) -> float:
        """Return how many other requests' prompts a step of all stages may carry, each as far as it holds a token up.

        A prompt alone in the pipe holds up by its passing through all stages, many by one stage's part each.
        """
        others = max(1.0, running / self.work.attention_data_parallel) - 1
        following = others * self.prompts_per_step * self.prompt_chunks
        return others * pipe_part(self.work.pipeline_parallel, following)

    def decode_seconds(self, running: float) -> float:
        """Return the time of one step through all stages, hops and drafting apart.

        Stages that are all busy wait for the one with the most to read.
        """
        part, weights = self.rank_requests(running), self.work.efficiency.decode
        seconds = self.step_seconds + part * self.step_seconds_per_request
        prompts = self.others_prompts(running) * self.step_seconds_per_other
        experts = 0.0
        if self.expert_seconds:
            tokens = max(1.0, running / self.work.pipeline_parallel) * self.computed_tokens
            experts = self.expert_seconds * self.work.touched_part(tokens)
            seconds += weights["expert_weights"] * experts
        beyond = part * self.compute_seconds_per_request - self.dense_seconds - experts
        if beyond > 0:
            seconds += weights["compute_beyond_reading"] * beyond
        busy = min(float(self.work.pipeline_parallel), max(1.0, running))
        return seconds * max(1.0, busy * self.work.slowest_stage_part) + prompts

    def token_seconds(self, running: float) -> float:
        """Return the time between two tokens of one of `running` requests that run at once.

        With a pipeline the batch is dealt out to the stages, and a request waits
        until its part has passed all of them. Tokens are drafted by one layer, as by
        multi-token prediction (arXiv:2412.19437, section 2.2) and EAGLE (arXiv:2401.15077).
        """
        hops = self.hop_seconds + self.rank_requests(running) * self.hop_seconds_per_request
        seconds = self.decode_seconds(running) + hops
        return self.work.token_factor * seconds * (1 + self.drafting_part) / self.tokens_per_step

    def first_token_seconds(self, running: float) -> float:
        """Return the mean time to the first token while `running` requests share the replica."""
        others = self.rank_requests(running) - 1
        step = self.work.efficiency.prefill["decode_step"] * self.decode_seconds(running)
        return self.work.first_token_factor * (self.first_seconds + others * self.first_seconds_per_other + step)


def pipe_part(stages: int, following: float) -> float:
    """Return the part of a passing through all stages that each of so many chunks takes, one after another.

    All have passed after `following` + `stages` - 1 stage times (Huang et al. 2019, GPipe, arXiv:1811.06965,
    section 2.3); one chunk alone takes the whole passing.
    """
    chunks = max(1.0, following)
    return (chunks + stages - 1) / (chunks * stages)


def pace_of(work: ReplicaWork, traffic: Traffic) -> Pace:
    """Return a replica's times under a traffic."""
    return _pace(ByIdentity(work), traffic)


@lru_cache(maxsize=MOST_KEPT_PACES)
def _pace(same: ByIdentity[ReplicaWork], traffic: Traffic) -> Pace:
    work = same.value
    efficiency = work.efficiency
    step, prompt = step_terms(work, traffic), prompt_terms(work, traffic)
    constant = {name: efficiency.prefill[name] * term for name, term in prompt.constant.items()}
    hop, hops = work.hop_seconds(1), work.pipeline_parallel - 1
    return Pace(
        work=work,
        computed_tokens=traffic.draft_tokens + 1,
        step_seconds=_weighed(efficiency.decode, step.constant),
        step_seconds_per_request=_weighed(efficiency.decode, step.per_request),
        step_seconds_per_other=_weighed(efficiency.decode, step.per_other),
        dense_seconds=step.dense_seconds,
        compute_seconds_per_request=step.compute_seconds_per_request,
        expert_seconds=work.expert_bytes / work.memory_bytes_per_second,
        first_seconds=sum(constant.values())
        + _wire_seconds(work, traffic, efficiency)
        + traffic.prefill_tokens * hop
        + work.network_seconds,
        first_seconds_per_other=_weighed(efficiency.prefill, prompt.per_other),
        prompt_seconds=_prompt_seconds(work, traffic, efficiency),
        # A message's start takes a hand-over what it takes a layer's all-reduces.
        hop_seconds=hops * efficiency.decode["parallel_layers"] + work.network_seconds,
        hop_seconds_per_request=hop,
        prompts_per_step=traffic.tokens_per_step / traffic.output_tokens,
        prompt_chunks=_chunks(traffic.prefill_tokens),
        tokens_per_step=traffic.tokens_per_step,
        drafting_part=traffic.draft_tokens / work.layers,
    )


def _weighed(weights: Mapping[str, float], terms: Mapping[str, float]) -> float:
    return sum(weights[name] * term for name, term in terms.items())


def _wire_seconds(work: ReplicaWork, traffic: Traffic, efficiency: Efficiency) -> float:
    """Return the prompt's all-reduces: fitted on NVLink; nothing is slower than its link by the same factor."""
    link = min(1.0, work.tensor_link_bytes_per_second / REFERENCE_LINK_BYTES_PER_SECOND)
    wire = work.all_reduce_seconds(traffic.prefill_tokens)
    return max(efficiency.prefill["all_reduce"] * link * wire, wire)


def _prompt_seconds(work: ReplicaWork, traffic: Traffic, efficiency: Efficiency) -> float:
    """Return by how long one prompt holds all others up, as they feel it in their steps.

    No less than its operations take at the peak rate, nor than its part of a chunk's reading of the weights.
    """
    tokens = traffic.prefill_tokens
    compute = work.prefill_compute_seconds(tokens)
    felt = _weighed(efficiency.decode, _prefill_of_others(work, tokens))
    reading = work.weight_bytes_read(CHUNK_TOKENS) / work.memory_bytes_per_second * min(1.0, tokens / CHUNK_TOKENS)
    return max(felt, compute, reading) / work.pipeline_parallel


def _prefill_of_others(work: ReplicaWork, tokens: int) -> dict[str, float]:
    """Return the terms of a prompt that other requests wait for."""
    compute, is_mixture = work.prefill_compute_seconds(tokens), work.mixture_layers > 0
    return {
        "others_prefill_dense": 0.0 if is_mixture else compute,
        "others_prefill_mixture": compute if is_mixture else 0.0,
        "others_prefill_all_reduce": work.all_reduce_seconds(tokens),
    }


def _chunks(tokens: int) -> int:
    return -(-tokens // CHUNK_TOKENS)


def step_terms(work: ReplicaWork, traffic: Traffic) -> StepTerms:
    """Return a step's terms.

    Each running request is delayed by the prefill of the others, of which each
    sends one in the time of its own steps. Drafted tokens are all computed.
    """
    context, computed = traffic.context_tokens, traffic.draft_tokens + 1
    dense, stages = work.read_bytes / work.memory_bytes_per_second, float(work.pipeline_parallel)
    each = traffic.tokens_per_step / traffic.output_tokens
    return StepTerms(
        constant={
            "dense_weights": dense,
            "expert_tiles": work.tile_bytes / work.memory_bytes_per_second,
            "operations": float(0 if work.is_blackwell else work.operations),
            "blackwell_operations": float(work.operations if work.is_blackwell else 0),
            "parallel_layers": float(work.layers if work.ranks_per_stage > 1 else 0),
            "quantized_matmuls": float(work.matmuls if work.quantizes_activations else 0),
            "steps": stages,
        },
        per_request={
            "cache": work.cache_seconds(context),
            "all_reduce": work.all_reduce_seconds(computed),
            "requests": stages,
        },
        per_other={name: each * term for name, term in _prefill_of_others(work, traffic.prefill_tokens).items()},
        dense_seconds=dense,
        compute_seconds_per_request=computed * work.decode_flops(context) / work.peak_flops_per_second,
    )


def prompt_terms(work: ReplicaWork, traffic: Traffic) -> PromptTerms:
    """Return the terms of the time to the first token.

    `queued` are the prompts of the other requests, which come together where
    answers are equally long; a new request waits for the step under way.
    """
    tokens = traffic.prefill_tokens
    compute = work.prefill_compute_seconds(tokens)
    is_mixture = work.mixture_layers > 0
    chunk = min(tokens, CHUNK_TOKENS)
    own = compute * pipe_part(work.pipeline_parallel, _chunks(tokens))
    return PromptTerms(
        constant={
            "requests": 1.0,
            "compute_dense": 0.0 if is_mixture else own,
            "compute_mixture": own if is_mixture else 0.0,
            "operations": float(work.operations),
            "weights": work.weight_bytes_read(chunk) / work.memory_bytes_per_second,
        },
        per_other={
            "queued_dense": 0.0 if is_mixture else compute,
            "queued_mixture": compute if is_mixture else 0.0,
            "queued_all_reduce": work.all_reduce_seconds(tokens),
        },
    )


def decode_terms(work: ReplicaWork, running: float, traffic: Traffic) -> Mapping[str, float]:
    """Return a step's terms one by one, with `running` requests at once."""
    terms, pace = step_terms(work, traffic), pace_of(work, traffic)
    part = pace.rank_requests(running)
    tokens = max(1.0, running / work.pipeline_parallel) * pace.computed_tokens
    experts = pace.expert_seconds * work.touched_part(tokens)
    beyond = part * terms.compute_seconds_per_request - terms.dense_seconds - experts
    return {
        **terms.constant,
        **{name: part * term for name, term in terms.per_request.items()},
        **{name: pace.others_prompts(running) * term for name, term in terms.per_other.items()},
        "expert_weights": experts,
        "compute_beyond_reading": max(0.0, beyond),
    }


def prefill_terms(work: ReplicaWork, running: float, traffic: Traffic) -> Mapping[str, float]:
    """Return the terms of the time to the first token one by one; the prompt's all-reduces apart."""
    terms, pace = prompt_terms(work, traffic), pace_of(work, traffic)
    others = pace.rank_requests(running) - 1
    return {
        **terms.constant,
        **{name: others * term for name, term in terms.per_other.items()},
        "decode_step": pace.decode_seconds(running),
    }
