"""Answers of the serving planner, shaped as clients receive them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plimsoll.planners.learned import Learned
from plimsoll.planners.plans import Omitted, SearchCounts
from plimsoll.planners.questions import RopeScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLayout:
    """gpus = data x attention_data x tensor x pipeline; `data_parallel` counts replicas.

    Of those `prefill_replicas` prefill and the others decode; None where each does both.
    """

    gpus: int
    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int
    attention_data_parallel: int
    expert_parallel: int
    decode_context_parallel: int
    prefill_replicas: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingMemoryItems:
    """One GPU's bytes by what they are for; the KV cache takes what the budget leaves."""

    weights: int
    kv_cache: int
    activations: int
    cuda_graphs: int
    runtime: int

    @property
    def total_bytes(self) -> int:
        """Return the sum of the items."""
        return self.weights + self.kv_cache + self.activations + self.cuda_graphs + self.runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class StageServingMemory:
    """One pipeline stage's GPU; `layers` is its first and last layer."""

    stage: int
    layers: tuple[int, int]
    peak_bytes: int
    available_bytes: int
    items: ServingMemoryItems


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingMemory:
    """What the engine will take of one GPU of the binding pipeline stage.

    `requested_bytes` is the engine's budget, the utilization's share of the card;
    `claimed_bytes` adds what the engine takes outside it (CUDA graphs, in versions
    that do not budget them) and must be free when the engine starts.
    """

    peak_bytes: int
    limit_bytes: int
    margin_bytes: int
    requested_bytes: int
    claimed_bytes: int
    items: ServingMemoryItems
    stages: tuple[StageServingMemory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGroup:
    """Layers whose cache grows alike. `bytes_per_token_per_layer` is before parallelism.

    A recurrent layer grows by none: it keeps `state_bytes_per_layer` for each
    sequence on one GPU, what pads the state to a block counted.
    """

    kind: str
    layers: int
    bytes_per_token_per_layer: int
    window: int | None
    state_bytes_per_layer: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KvContext:
    """How many requests a replica's cache holds, each of so many tokens."""

    tokens: int
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCache:
    """The cache of one replica, in the engine's own terms.

    `bytes_per_token` is for the whole model before parallelism, over layers that
    grow with the sequence; `available_bytes` is what one GPU has left for the
    cache; `tokens` is the capacity of a replica as the engine logs it, of one attention
    rank where there are several, and `max_concurrency` how many requests of
    `max_model_len` it holds.
    `requests_held` is how many requests of the traffic's input and output it holds,
    `contexts` how many of other lengths, up to `max_model_len`,
    and `last_block_waste_fraction` the part of their blocks that stays empty at their
    end because a block holds whole tokens of one request alone. `longest_context_tokens`
    is the longest single request that the cache could hold, up to the model's own limit.
    """

    available_bytes: int
    available_low_bytes: int
    available_high_bytes: int
    bytes_per_token: int
    bytes_per_token_per_gpu: int
    block_size: int
    blocks: int
    tokens: int
    max_concurrency: float
    requests_held: int
    last_block_waste_fraction: float
    groups: tuple[KvGroup, ...]
    contexts: tuple[KvContext, ...]
    longest_context_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Latency and throughput of the whole deployment at one concurrency."""

    concurrency: int
    ttft_seconds: float
    tpot_seconds: float
    output_tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """The mean of some seconds, and what 50, 90, 95 and 99 of 100 requests do not exceed."""

    mean_seconds: float
    p50_seconds: float
    p90_seconds: float
    p95_seconds: float
    p99_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLoad:
    """What requests see under a load, simulated step by step as the engine's scheduler fills its steps.

    `arrivals` is closed_loop, random or bursts. Of all `requests` of one replica `counted_requests` are told about:
    all of bursts, else without warm-up and drain. Rates are the whole deployment's. `gave_way_fraction` of the requests
    were sent back to the queue, and their tokens computed again are `recomputed_tokens_fraction` of all prompts'. The
    cache fractions are over the engine's busy time. `burst_clears_seconds` pass from a burst to its last answer.
    """

    arrivals: str
    requests: int
    counted_requests: int
    ttft: Quantiles
    tpot: Quantiles
    request: Quantiles
    requests_per_second: float
    output_tokens_per_second: float
    gave_way_fraction: float
    recomputed_tokens_fraction: float
    cache_mean_fraction: float
    cache_peak_fraction: float
    burst_clears_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """Mean latencies and the deployment's throughput at the asked concurrency.

    Nine of ten measured deployments of models that the fit had not seen lay between
    the low and the high end. The 99th percentiles stand where a request rate was
    asked for; `concurrency` is then the mean of what runs. `simulated` is what requests
    see one by one under the asked load, None where no load was asked for.
    """

    ttft_seconds: float
    ttft_low_seconds: float
    ttft_high_seconds: float
    tpot_seconds: float
    tpot_low_seconds: float
    tpot_high_seconds: float
    output_tokens_per_second: float
    requests_per_second: float
    ttft_p99_seconds: float | None
    tpot_p99_seconds: float | None
    concurrency: int
    curve: tuple[CurvePoint, ...]
    simulated: SimulatedLoad | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What the engine runs with, its own defaults filled in.

    `cache_implementation` is None where the engine has but one cache, `rope_scaling`
    where positions are as the model's config has them. `is_block_size_fixed` says whether
    the client fixed `block_size`; else the engine chooses it, and no launch file names it.
    `activations` is the format that the layers compute in. `expert_backend` is what the engine is told to compute
    experts with, None where it is told nothing. `chunked_prefill` says whether it is told to cut
    prompts where a step is full, None where nobody asked.
    """

    engine: str
    engine_version: str
    weights: str
    kv_cache: str
    max_model_len: int
    input_tokens: int
    output_tokens: int
    gpu_memory_utilization: float
    block_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    cache_implementation: str | None = None
    rope_scaling: RopeScaling | None = None
    is_block_size_fixed: bool = False
    activations: str = "bf16"
    expert_backend: str | None = None
    chunked_prefill: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPlan:
    """One layout with its memory, its cache and its speed.

    `performance` is None when not even one request fits. `cost_usd_per_million_output_tokens`
    is None without a price. `learned` is what a measured start of the same model on
    this GPU and engine version changed.
    """

    layout: ServingLayout
    settings: EngineSettings
    memory: ServingMemory
    kv: KvCache
    performance: Performance | None
    cost_usd_per_million_output_tokens: float | None
    learned: Learned | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingAlternative:
    """Another deployment worth knowing, at a concurrency.

    One that `is_on_front` is neither as cheap nor as fast as any other at once: of all
    that keep what was asked, none costs less a token and answers sooner. The load is
    the asked one; where none was asked, each stands at several concurrencies.
    `request_seconds` is the mean time of a whole answer. Nothing runs where the
    latencies are None.
    """

    gpu: str
    layout: ServingLayout
    weights: str
    kv_cache: str
    max_num_batched_tokens: int
    max_num_seqs: int
    kv_tokens: int
    max_concurrency: float
    concurrency: int | None
    ttft_seconds: float | None
    tpot_seconds: float | None
    request_seconds: float | None
    output_tokens_per_second: float | None
    gpu_seconds_per_million_output_tokens: float | None
    cost_usd_per_million_output_tokens: float | None
    is_on_front: bool
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFleetEntry:
    """The best deployment on one entry of a fleet; entries come best first.

    `entry` is its place in the request. One that cannot serve the model at all has
    a `refusal` instead of a deployment.
    """

    entry: int
    gpu: str
    fits: bool
    verdict: str
    gpus: int | None = None
    layout: ServingLayout | None = None
    weights: str | None = None
    kv_cache: str | None = None
    kv_tokens: int | None = None
    meets_concurrency: bool | None = None
    meets_slo: bool | None = None
    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    output_tokens_per_second: float | None = None
    cost_usd_per_million_output_tokens: float | None = None
    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingAdvice:
    """A change to the question, already planned: with all of `change` said in it, this plan comes.

    `meets` says whether all that was asked is kept then, a load and a service level as `change` has them.
    """

    change: Mapping[str, Any]
    fits: bool
    kv_tokens: int
    max_concurrency: float
    peak_bytes: int
    reason: str
    verdict: str
    meets: bool
    gpus: int
    ttft_seconds: float | None
    tpot_seconds: float | None
    output_tokens_per_second: float | None
    cost_usd_per_million_output_tokens: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingAnswer:
    """What `plan_serving` returns; `fits` means weights and one request of `max_model_len`.

    `meets` says whether all that was asked is kept: that, the load and the service level.
    """

    fits: bool
    verdict: str
    meets: bool
    meets_concurrency: bool | None
    meets_slo: bool | None
    summary: str
    plan: ServingPlan
    alternatives: tuple[ServingAlternative, ...]
    search: SearchCounts
    advice: tuple[ServingAdvice, ...]
    assumptions: tuple[str, ...] = field(default=())
    fleet: tuple[ServingFleetEntry, ...] = ()
    omitted: tuple[Omitted, ...] = ()
