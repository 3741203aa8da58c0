"""The body of `POST /measurements`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from plimsoll.service.requests.serving import CacheFormat, Engine, WeightFormat
from plimsoll.service.requests.training import Stack
from plimsoll.service.requests.values import ByteCount, Name, PositiveByteCount, Seconds, TokensPerSecond, Wire

TokenCount = Annotated[int, Field(ge=1, le=2**50)]
Requests = Annotated[float, Field(ge=1e-9, le=1e9)]

# Training stacks and serving engines, as plans name them.
if TYPE_CHECKING:
    MeasuredFramework: TypeAlias = str
else:
    MeasuredFramework = Literal[Stack, Engine]

# An engine prints some ten thousand characters as it starts.
MOST_LOG_CHARACTERS = 1_000_000
# Fields that say what ran; the others are quantities.
DESCRIBED = frozenset(
    {"plan_id", "framework", "gpu", "model", "source", "log", "engine_version", "weights", "kv_cache"}
)


class MeasurementRequest(Wire):
    """Memory and speed of a real run, per GPU; each quantity is the plan's of the same name.

    Say what ran: either `plan_id`, or `framework`, `gpu` and `model`. Instead of numbers,
    `log` may hold what vLLM or SGLang printed as it started. Without a `plan_id` that start
    is planned by the settings in the log, and by `gpu`, `model`, `engine_version`, `weights`
    and `kv_cache` where the log does not state them.
    """

    plan_id: Name | None = None
    framework: MeasuredFramework | None = None
    gpu: Name | None = None
    model: Name | None = None
    source: Name = "anonymous"
    log: Annotated[str, Field(min_length=1, max_length=MOST_LOG_CHARACTERS)] | None = None
    engine_version: Name | None = None
    weights: WeightFormat | None = None
    kv_cache: CacheFormat | None = None
    peak_bytes: PositiveByteCount | None = None
    allocated_bytes: PositiveByteCount | None = None
    reserved_bytes: PositiveByteCount | None = None
    weights_bytes: PositiveByteCount | None = None
    activations_bytes: PositiveByteCount | None = None
    runtime_bytes: PositiveByteCount | None = None
    cuda_graphs_bytes: ByteCount | None = None
    step_seconds: Seconds | None = None
    tokens_per_second: TokensPerSecond | None = None
    kv_available_bytes: PositiveByteCount | None = None
    kv_tokens: TokenCount | None = None
    kv_blocks: TokenCount | None = None
    kv_max_concurrency: Requests | None = None
    ttft_seconds: Seconds | None = None
    tpot_seconds: Seconds | None = None
    output_tokens_per_second: TokensPerSecond | None = None

    def quantities(self) -> dict[str, int | float]:
        """Return the measured quantities by name, without those in the log."""
        return self.model_dump(exclude=set(DESCRIBED), exclude_none=True)

    @model_validator(mode="after")
    def _must_measure_something(self) -> MeasurementRequest:
        if not self.quantities() and self.log is None:
            raise ValueError(
                "has no measurement: give a log, or a value such as peak_bytes, step_seconds or tokens_per_second"
            )
        if self.plan_id is None and self.log is None and None in (self.framework, self.gpu, self.model):
            raise ValueError("needs a plan_id, or framework, gpu and model")
        if self.plan_id is None and self.gpu is None:
            raise ValueError("needs a plan_id, or the gpu that the log is of")
        return self
