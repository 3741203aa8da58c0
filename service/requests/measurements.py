"""`POST /measurements`: what real runs were seen to do."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from service.requests.values import Name, PositiveByteCount, Seconds, Wire

TokensPerSecond = Annotated[float, Field(ge=1e-9, le=1e15)]
TokenCount = Annotated[int, Field(ge=1, le=2**50)]


class MeasurementRequest(Wire):
    """What one GPU of a real run used and how fast the run went; each quantity is the plan's of the same name.

    With a `plan_id` the plan says which framework, GPU and model it was; without
    one, those three are needed.
    """

    plan_id: Name | None = None
    framework: Name | None = None
    gpu: Name | None = None
    model: Name | None = None
    source: Name = "anonymous"
    peak_bytes: PositiveByteCount | None = None
    allocated_bytes: PositiveByteCount | None = None
    reserved_bytes: PositiveByteCount | None = None
    step_seconds: Seconds | None = None
    tokens_per_second: TokensPerSecond | None = None
    kv_available_bytes: PositiveByteCount | None = None
    kv_tokens: TokenCount | None = None
    ttft_seconds: Seconds | None = None
    tpot_seconds: Seconds | None = None
    output_tokens_per_second: TokensPerSecond | None = None

    def quantities(self) -> dict[str, int | float]:
        """Return what was measured, by name."""
        described = {"plan_id", "framework", "gpu", "model", "source"}
        return self.model_dump(exclude=described, exclude_none=True)

    @model_validator(mode="after")
    def _must_measure_something(self) -> MeasurementRequest:
        if not self.quantities():
            raise ValueError("measures nothing: give at least one of peak_bytes, step_seconds, tokens_per_second, …")
        if self.plan_id is None and None in (self.framework, self.gpu, self.model):
            raise ValueError("needs a plan_id, or framework, gpu and model")
        return self
