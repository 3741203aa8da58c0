"""`POST /plan/infer`: a serving deployment to size."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from plimsoll.planners import questions
from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.families.reading.rope_scaling import MOST_FACTOR
from plimsoll.planners.ground.hardware import Gpu, Hardware
from plimsoll.planners.ground.ranges import BATCHED_TOKENS, BLOCK_TOKENS, DRAFT_TOKENS, SHARE
from plimsoll.planners.ground.terms import ServingObjective
from plimsoll.planners.questions import (
    AllowedChoices,
    Disaggregation,
    RopeScaling,
    ServiceLevel,
    ServingLayoutRequest,
    ServingQuestion,
    Speculation,
)
from plimsoll.planners.serving.cache.kv_formats import KV_FORMATS
from plimsoll.planners.serving.formats.weight_format import WEIGHT_FORMATS
from plimsoll.planners.serving.releases.profile import cache_implementations
from plimsoll.planners.serving.releases.tables import known_engines
from plimsoll.service.requests.carrying import Carried, carried
from plimsoll.service.requests.hardware import Fleet, HardwareRequest
from plimsoll.service.requests.models import ModelRef
from plimsoll.service.requests.values import (
    Concurrency,
    Degree,
    Fraction,
    Name,
    RequestsPerSecond,
    Seconds,
    SequenceTokens,
    Wire,
    within,
)

if TYPE_CHECKING:
    WeightFormat: TypeAlias = str
    CacheFormat: TypeAlias = str
    CacheImplementation: TypeAlias = str
    Engine: TypeAlias = str
else:
    WeightFormat = Literal[tuple(WEIGHT_FORMATS)]
    CacheFormat = Literal[tuple(KV_FORMATS)]
    CacheImplementation = Literal[cache_implementations()]
    Engine = Literal[known_engines()]

MOST_HISTOGRAM_BINS = 10_000

# Where neither the request nor the model's name says.
DEFAULT_FORMAT = "bf16"
FORMAT_NOTE = (
    "If omitted: the checkpoint's own format where its name or config says that it is quantized, otherwise bf16, "
    "or fp16 on cards that do not compute in bf16."
)
# An engine caches in the activations' type, which weights of these formats are computed in.
CACHE_OF_WEIGHTS = {"fp16": "fp16", "fp32": "fp32"}
WITHOUT_BF16 = "fp16"
CACHE_NOTE = (
    "If omitted: the format that the checkpoint fixes; otherwise fp16 or fp32 as the weights; otherwise bf16, or fp16 "
    "on cards that do not compute in bf16."
)

CHOICE_NOTE = "A list is of what may be chosen: every combination is searched."
MOST_LISTED = 8
_LISTED = Field(min_length=1, max_length=MOST_LISTED)
BatchedTokens: TypeAlias = Annotated[int, *within(BATCHED_TOKENS)]


def _form(value: Any) -> str:
    return "(list)" if isinstance(value, list) else "(one)"


WeightFormats: TypeAlias = Annotated[
    Annotated[WeightFormat, Tag("(one)")] | Annotated[list[WeightFormat], _LISTED, Tag("(list)")], Discriminator(_form)
]
CacheFormats: TypeAlias = Annotated[
    Annotated[CacheFormat, Tag("(one)")] | Annotated[list[CacheFormat], _LISTED, Tag("(list)")], Discriminator(_form)
]
BatchLimits: TypeAlias = Annotated[
    Annotated[BatchedTokens, Tag("(one)")] | Annotated[list[BatchedTokens], _LISTED, Tag("(list)")],
    Discriminator(_form),
]
SequenceLimits: TypeAlias = Annotated[
    Annotated[Concurrency, Tag("(one)")] | Annotated[list[Concurrency], _LISTED, Tag("(list)")], Discriminator(_form)
]

TokenLength: TypeAlias = Annotated[float, Field(gt=0, le=2**24)]


class Histogram(Wire):
    """How many requests have which length: `counts[i]` of at most `lengths[i]` tokens."""

    lengths: Annotated[list[TokenLength], Field(min_length=1, max_length=MOST_HISTOGRAM_BINS)]
    counts: Annotated[list[Annotated[float, Field(ge=0, le=1e18)]], Field(min_length=1, max_length=MOST_HISTOGRAM_BINS)]


class LengthDistribution(Carried):
    """How long requests or answers are, in tokens."""

    mean: TokenLength | None = None
    p50: TokenLength | None = None
    p90: TokenLength | None = None
    p99: TokenLength | None = None
    histogram: Histogram | None = None

    def to_counterpart(self) -> questions.LengthDistribution:
        """Return the planner's distribution."""
        return questions.LengthDistribution(
            mean=self.mean,
            p50=self.p50,
            p90=self.p90,
            p99=self.p99,
            lengths=tuple(self.histogram.lengths) if self.histogram else (),
            counts=tuple(self.histogram.counts) if self.histogram else (),
        )


class Speculative(Carried):
    """Speculative decoding: tokens drafted at once, and the part of them that is accepted."""

    counterpart = Speculation

    tokens: Annotated[int, *within(DRAFT_TOKENS)]
    acceptance_rate: Fraction


class Disaggregated(Carried):
    """Prefill and decode on GPUs of their own; numbers that are omitted are searched."""

    counterpart = Disaggregation

    prefill_gpus: Degree | None = None
    decode_gpus: Degree | None = None


class ServiceLevelPart(Carried):
    """The mean latencies to keep."""

    counterpart = ServiceLevel

    ttft_seconds: Seconds | None = None
    tpot_seconds: Seconds | None = None


class RopeScalingPart(Carried):
    """Positions stretched beyond the model's own, in the words of a config.json."""

    counterpart = RopeScaling

    rope_type: Literal["yarn", "linear", "dynamic"]
    factor: Annotated[float, Field(gt=1, le=MOST_FACTOR)]
    original_max_position_embeddings: SequenceTokens | None = Field(
        default=None, description="The positions that YaRN extends. If omitted: those of the model's config."
    )
    rope_theta: Annotated[float, Field(gt=0, le=1e12)] | None = Field(
        default=None, description="The wavelengths' base, for launch files where the model's config does not say it."
    )


class ServingPart(Wire):
    """The deployment. Engine settings that are omitted take the defaults of that engine version."""

    weights: WeightFormats | None = Field(default=None, description=f"{FORMAT_NOTE} {CHOICE_NOTE}")
    kv_cache: CacheFormats | None = Field(default=None, description=f"{CACHE_NOTE} {CHOICE_NOTE}")
    max_model_len: SequenceTokens | None = None
    rope_scaling: RopeScalingPart | None = None
    input_tokens: SequenceTokens | None = None
    output_tokens: SequenceTokens | None = None
    concurrency: Concurrency | None = None
    engine: Engine = known_engines()[0]
    engine_version: Name | None = None
    gpu_memory_utilization: Annotated[float, *within(SHARE)] | None = None
    block_size: Annotated[int, *within(BLOCK_TOKENS)] | None = None
    cache_implementation: CacheImplementation | None = Field(
        default=None, description="Of transformers: a cache that grows, or one allocated for the longest sequence."
    )
    chunked_prefill: bool | None = Field(
        default=None,
        description="Whether a prompt is cut where a step is full. If omitted: as the engine does by itself "
        "(TensorRT-LLM does not).",
    )
    expert_backend: Name | None = Field(
        default=None,
        description="Of TensorRT-LLM: what computes experts (moe_config.backend): CUTLASS, TRTLLM, DEEPGEMM or TRITON.",
    )
    max_num_batched_tokens: BatchLimits | None = Field(default=None, description=CHOICE_NOTE)
    max_num_seqs: SequenceLimits | None = Field(default=None, description=CHOICE_NOTE)
    slo: ServiceLevelPart | None = None
    requests_per_second: RequestsPerSecond | None = None
    burst_seconds: Seconds | None = Field(
        default=None,
        description="The `concurrency` requests come all at once, again every so many seconds. If omitted: each client "
        "sends its next request as the last is answered.",
    )
    simulate: bool | None = Field(
        default=None,
        description="Follow single requests under the asked load (`performance.simulated`), which takes 1 to 10 ms. "
        "If omitted: true. Bursts are always followed.",
    )
    input_length: LengthDistribution | None = None
    output_length: LengthDistribution | None = None
    prefix_cache_hit_rate: Fraction | None = None
    speculative: Speculative | None = None
    disaggregated: Disaggregated | bool | None = None


class ServingLayoutPart(Carried):
    """The degrees that are fixed; absent ones are searched, decode context parallelism where tensor parallelism is."""

    counterpart = ServingLayoutRequest

    tensor_parallel: Degree | None = None
    pipeline_parallel: Degree | None = None
    data_parallel: Degree | None = None
    attention_data_parallel: Degree | None = None
    expert_parallel: Degree | None = None
    decode_context_parallel: Degree | None = None


class InferRequest(Wire):
    """A deployment: the model, the GPUs, and what it must serve."""

    model: ModelRef
    hardware: HardwareRequest
    serving: ServingPart = ServingPart()
    layout: ServingLayoutPart = ServingLayoutPart()
    objective: ServingObjective = "throughput"

    @property
    def has_one_layout(self) -> bool:
        """Return whether all degrees that multiply to the GPUs are fixed; how experts spread may be left to choose."""
        degrees = (self.layout.tensor_parallel, self.layout.pipeline_parallel, self.layout.data_parallel)
        return None not in degrees and not isinstance(self.hardware, Fleet)

    def in_formats(self, gpus: Iterable[Gpu], *, weights: str | None, kv_cache: str | None) -> InferRequest:
        """Return the request with its formats filled in: its own, else those given, else what the GPUs compute in.

        A format is omitted where that differs between them.
        """
        cards = tuple(gpus)
        held = self.serving.weights or weights or _shared(_activations(gpu) for gpu in cards)
        cache = self.serving.kv_cache or kv_cache or _shared(_cache_of(held, gpu) for gpu in cards)
        formats = {"weights": held, "kv_cache": cache}
        return self.model_copy(update={"serving": self.serving.model_copy(update=formats)})

    def to_question(self, model: ModelSpec, hardware: Hardware, *, scale_block: int | None = None) -> ServingQuestion:
        """Return the planner's question, about a checkpoint with scales of such blocks."""
        serving, part = self.serving, self.serving.disaggregated
        fields = {
            **carried(serving, ServingQuestion),
            "weights": _first(serving.weights) or _activations(hardware.gpu),
            "kv_cache": _first(serving.kv_cache) or _cache_of(serving.weights, hardware.gpu),
            "disaggregated": Disaggregation() if part is True else part.to_counterpart() if part else None,
        }
        return ServingQuestion(
            model=model,
            hardware=hardware,
            scale_block=scale_block,
            objective=self.objective,
            layout=self.layout.to_counterpart(),
            allowed=_allowed(serving),
            **fields,
        )


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


def _shared(formats: Iterable[str]) -> str | None:
    """Return the one format of all, None where they differ."""
    distinct = set(formats)
    return distinct.pop() if len(distinct) == 1 else None


def _activations(gpu: Gpu) -> str:
    """Return the 16-bit format that a card computes in."""
    return DEFAULT_FORMAT if DEFAULT_FORMAT in gpu.peak_flops_per_second else WITHOUT_BF16


def _cache_of(weights: Any, gpu: Gpu) -> str:
    """Return the cache's format where none was asked for: that of the activations beside quantized weights."""
    activations = _activations(gpu)
    return activations if isinstance(weights, list) else CACHE_OF_WEIGHTS.get(weights, activations)


def _allowed(serving: ServingPart) -> AllowedChoices | None:
    """Return what was left to choose, None where nothing was."""
    values = {field.name: getattr(serving, field.name) for field in dataclasses.fields(AllowedChoices)}
    listed = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return AllowedChoices(**listed) if listed else None
