"""`POST /plan/infer`: a serving deployment to size."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from planners.architecture import ModelSpec
from planners.errors import NotYetAvailable
from planners.hardware import Hardware
from planners.questions import ServiceLevel, ServingLayoutRequest, ServingQuestion
from service.requests.hardware import HardwareRequest
from service.requests.models import ModelRef
from service.requests.values import Concurrency, Degree, Fraction, Name, Seconds, SequenceTokens, Wire, whole

WeightFormat: TypeAlias = Literal[
    "fp32", "bf16", "fp16", "fp8", "int8", "nf4", "int4", "int4-experts", "mxfp4", "mxfp4-fp8", "nvfp4"
]
CacheFormat: TypeAlias = Literal["bf16", "fp16", "fp8", "int8", "nvfp4"]
Engine: TypeAlias = Literal["vllm", "sglang", "tensorrt-llm", "transformers"]
ServingObjective: TypeAlias = Literal["throughput", "fewest_gpus", "cost", "latency"]

MOST_BLOCK_TOKENS = 65_536
MOST_BATCHED_TOKENS = 2**27
MOST_DRAFT_TOKENS = 1_000
MOST_HISTOGRAM_BINS = 10_000

# Where neither the request nor the model's name says.
DEFAULT_FORMAT = "bf16"
FORMAT_NOTE = (
    "Left away: what the checkpoint holds, where its name or its config says that it is quantized, and else bf16."
)

TokenLength: TypeAlias = Annotated[float, Field(gt=0, le=2**24)]


class Histogram(Wire):
    """How many requests have which length: `counts[i]` of at most `lengths[i]` tokens."""

    lengths: Annotated[list[TokenLength], Field(min_length=1, max_length=MOST_HISTOGRAM_BINS)]
    counts: Annotated[list[Annotated[float, Field(ge=0, le=1e18)]], Field(min_length=1, max_length=MOST_HISTOGRAM_BINS)]


class LengthDistribution(Wire):
    """How long requests or answers are, in tokens."""

    mean: TokenLength | None = None
    p50: TokenLength | None = None
    p90: TokenLength | None = None
    p99: TokenLength | None = None
    histogram: Histogram | None = None


class Speculative(Wire):
    """Speculative decoding: tokens drafted at once, and the part of them that is accepted."""

    tokens: Annotated[int, *whole(least=1, most=MOST_DRAFT_TOKENS)]
    acceptance_rate: Fraction


class Disaggregated(Wire):
    """Prefill and decode on GPUs of their own."""

    prefill_gpus: Degree | None = None
    decode_gpus: Degree | None = None


class ServiceLevelPart(Wire):
    """The mean latencies to keep."""

    ttft_seconds: Seconds | None = None
    tpot_seconds: Seconds | None = None


class ServingPart(Wire):
    """The deployment. Engine settings left away take that engine version's own defaults."""

    weights: WeightFormat | None = Field(default=None, description=FORMAT_NOTE)
    kv_cache: CacheFormat | None = Field(default=None, description=FORMAT_NOTE)
    max_model_len: SequenceTokens | None = None
    input_tokens: SequenceTokens | None = None
    output_tokens: SequenceTokens | None = None
    concurrency: Concurrency | None = None
    engine: Engine = "vllm"
    engine_version: Name | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    block_size: Annotated[int, *whole(least=1, most=MOST_BLOCK_TOKENS)] | None = None
    max_num_batched_tokens: Annotated[int, *whole(least=1, most=MOST_BATCHED_TOKENS)] | None = None
    max_num_seqs: Concurrency | None = None
    slo: ServiceLevelPart | None = None
    requests_per_second: Annotated[float, Field(gt=0, le=1e9)] | None = None
    input_length: LengthDistribution | None = None
    output_length: LengthDistribution | None = None
    prefix_cache_hit_rate: Fraction | None = None
    speculative: Speculative | None = None
    disaggregated: Disaggregated | bool | None = None

    def refuse_what_is_not_there_yet(self) -> None:
        """Raise NotYetAvailable for a field that no planner reads, so that none is silently ignored."""
        for field in ("requests_per_second", "input_length", "output_length", "speculative"):
            if getattr(self, field) is not None:
                raise _not_yet(field)
        # Nothing cached and nothing disaggregated are what the planner assumes anyway.
        if self.prefix_cache_hit_rate:
            raise _not_yet("prefix_cache_hit_rate")
        if self.disaggregated is not None and self.disaggregated is not False:
            raise _not_yet("disaggregated")


class ServingLayoutPart(Wire):
    """The degrees that are fixed; absent ones are searched."""

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

    def in_formats(self, *, weights: str | None, kv_cache: str | None) -> InferRequest:
        """Return the request with its formats filled in: its own, else those given, else bf16."""
        formats = {
            "weights": self.serving.weights or weights or DEFAULT_FORMAT,
            "kv_cache": self.serving.kv_cache or kv_cache or DEFAULT_FORMAT,
        }
        return self.model_copy(update={"serving": self.serving.model_copy(update=formats)})

    def to_question(self, model: ModelSpec, hardware: Hardware) -> ServingQuestion:
        """Return the planner's question; raises NotYetAvailable for what no planner reads yet."""
        serving = self.serving
        serving.refuse_what_is_not_there_yet()
        return ServingQuestion(
            model=model,
            hardware=hardware,
            weights=serving.weights or DEFAULT_FORMAT,
            kv_cache=serving.kv_cache or DEFAULT_FORMAT,
            max_model_len=serving.max_model_len,
            input_tokens=serving.input_tokens,
            output_tokens=serving.output_tokens,
            concurrency=serving.concurrency,
            engine=serving.engine,
            engine_version=serving.engine_version,
            gpu_memory_utilization=serving.gpu_memory_utilization,
            block_size=serving.block_size,
            max_num_batched_tokens=serving.max_num_batched_tokens,
            max_num_seqs=serving.max_num_seqs,
            slo=None if serving.slo is None else ServiceLevel(**serving.slo.model_dump()),
            objective=self.objective,
            layout=ServingLayoutRequest(**self.layout.model_dump()),
        )


def _not_yet(field: str) -> NotYetAvailable:
    return NotYetAvailable(
        f"'{field}' is not taken into account yet; leave it away to plan without it.", pointer=f"/serving/{field}"
    )
