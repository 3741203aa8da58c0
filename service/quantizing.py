"""Quantizations: sized at once, done by a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planners.errors import NotYetAvailable
from planners.quantization import QuantizationEstimate, quantization_estimate
from service.jobs import JobService
from service.models import ModelResolver, ResolvedModel
from service.persistence.records import Job
from service.requests.jobs import CheckpointPath, QuantizeRequest

# Random weights are drawn in it: what checkpoints are published in.
RANDOM_WEIGHTS_DTYPE = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """What quantizing will leave, and the job that does it."""

    estimate: QuantizationEstimate
    job: Job


class QuantizationService:
    """Sizes and queues quantizations."""

    def __init__(self, models: ModelResolver, jobs: JobService) -> None:
        self._models = models
        self._jobs = jobs

    def estimated(self, request: QuantizeRequest) -> tuple[ResolvedModel, QuantizationEstimate]:
        """Return the model and its bytes before and after; call it off the event loop."""
        _refuse_what_is_not_there_yet(request)
        model = self._models.resolve(request.model)
        estimate = quantization_estimate(
            model.spec,
            request.scheme,
            double_quantization=request.double_quantization,
            block_size=request.block_size,
            original_dtype=RANDOM_WEIGHTS_DTYPE,
        )
        return model, estimate

    async def queue(
        self,
        request: QuantizeRequest,
        model: ResolvedModel,
        estimate: QuantizationEstimate,
        *,
        estimate_json: Mapping[str, Any],
        key_id: str | None = None,
        route: str,
        idempotency_key: str | None = None,
    ) -> Quantization:
        """Queue the quantization and return it; raises what `JobService.submit` raises."""
        job_request = {
            "model": {"name": model.name, "config": model.config},
            "scheme": request.scheme,
            "double_quantization": request.double_quantization,
            "block_size": request.block_size,
            "weights": "random",
            "seed": request.seed,
            "output": None,
        }
        job = await self._jobs.submit(
            "quantize",
            job_request,
            estimate=estimate_json,
            key_id=key_id,
            idempotency_key=idempotency_key,
            route=route,
        )
        return Quantization(estimate=estimate, job=job)


def _refuse_what_is_not_there_yet(request: QuantizeRequest) -> None:
    if isinstance(request.weights, CheckpointPath):
        raise NotYetAvailable(
            'Quantizing a real checkpoint is not there yet; "random" weights are.', pointer="/weights/path"
        )
    if request.output is not None:
        raise NotYetAvailable("Writing a quantized checkpoint is not there yet.", pointer="/output")
