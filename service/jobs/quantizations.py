"""Quantizations: sized at once, done by a worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.quantization.planning import (
    ORIGINAL_DTYPES,
    QuantizationEstimate,
    check_writable,
    quantization_estimate,
    scheme_settings,
)
from plimsoll.service.checkpoints.comparison import checkpoint_report
from plimsoll.service.checkpoints.headers import Checkpoint, read_checkpoint
from plimsoll.service.ground.allowed_paths import allowed_path
from plimsoll.service.ground.errors import InvalidCheckpoint
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.resolving import ModelResolver, ResolvedModel
from plimsoll.service.persistence.records import Job
from plimsoll.service.requests.jobs import CheckpointPath, QuantizeRequest

if TYPE_CHECKING:
    # A process without a database sizes quantizations too.
    from plimsoll.service.jobs.service import JobService

# Random weights are drawn in it: what checkpoints are published in.
RANDOM_WEIGHTS_DTYPE = "bf16"
# By the names that safetensors files use.
DTYPES: Mapping[str, str] = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """What quantizing will leave, and the job that does it."""

    estimate: QuantizationEstimate
    job: Job


class QuantizationSizer:
    """Sizes quantizations and says what a worker is to do; needs no queue."""

    def __init__(self, models: ModelResolver, settings: Settings) -> None:
        self._models = models
        self._settings = settings

    def estimated(self, request: QuantizeRequest) -> tuple[ResolvedModel, QuantizationEstimate]:
        """Return the model and its bytes before and after; call it off the event loop.

        A checkpoint's headers are read and an output's place is looked at, so that
        what cannot work is refused before it is queued: raises what
        `ModelResolver.resolve` raises, PathNotAllowed, InvalidCheckpoint at
        "/weights/path", and InvalidQuestion and NotYetAvailable at "/output".
        """
        model = self._models.resolve(request.model)
        dtype = RANDOM_WEIGHTS_DTYPE
        if isinstance(request.weights, CheckpointPath):
            dtype = _commonest_dtype(self._checkpoint(request.weights, model))
        settings = scheme_settings(
            request.scheme, double_quantization=request.double_quantization, block_size=request.block_size
        )
        if request.output is not None:
            self._output(request.output)
            check_writable(settings, model.spec)
        return model, quantization_estimate(settings, model.spec, original_dtype=dtype)

    def job_request(self, request: QuantizeRequest, model: ResolvedModel) -> dict[str, Any]:
        """Return what the worker is told; raises what `estimated` raises of paths."""
        return {
            "model": {"name": model.name, "config": model.config},
            "scheme": request.scheme,
            "double_quantization": request.double_quantization,
            "block_size": request.block_size,
            "weights": self._weights(request),
            "seed": request.seed,
            "output": None if request.output is None else str(self._output(request.output)),
        }

    def _weights(self, request: QuantizeRequest) -> str | dict[str, str]:
        if not isinstance(request.weights, CheckpointPath):
            return request.weights
        return {"path": str(self._checkpoint_folder(request.weights))}

    def _checkpoint_folder(self, weights: CheckpointPath) -> Path:
        return allowed_path(weights.path, self._settings.model_roots, pointer="/weights/path")

    def _checkpoint(self, weights: CheckpointPath, model: ResolvedModel) -> Checkpoint:
        folder = self._checkpoint_folder(weights)
        checkpoint = read_checkpoint(folder, self._settings.model_roots, pointer="/weights/path")
        if checkpoint is None:
            raise InvalidCheckpoint("The folder holds no safetensors checkpoint.", pointer="/weights/path")
        report = checkpoint_report(checkpoint, model.spec, model.config)
        if report.missing.count or report.other_shapes.count or report.absent_files.count:
            raise InvalidCheckpoint(
                f"The checkpoint is not of this model. {' '.join(report.disagreements)}", pointer="/weights/path"
            )
        return checkpoint

    def _output(self, output: str) -> Path:
        folder = allowed_path(output, self._settings.output_roots, pointer="/output", kind="output")
        if folder.exists():
            raise InvalidQuestion("The output exists already; name a folder that does not.", pointer="/output")
        if not folder.parent.is_dir():
            raise InvalidQuestion("The folder that the output is to stand in does not exist.", pointer="/output")
        return folder


class QuantizationService(QuantizationSizer):
    """Sizes and queues quantizations."""

    def __init__(self, models: ModelResolver, jobs: JobService, settings: Settings) -> None:
        super().__init__(models, settings)
        self._jobs = jobs

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
        asked_by: str = "",
    ) -> Quantization:
        """Queue the quantization and return it; raises what `JobService.submit` raises."""
        job = await self._jobs.submit(
            "quantize",
            self.job_request(request, model),
            estimate=estimate_json,
            key_id=key_id,
            idempotency_key=idempotency_key,
            route=route,
            asked_by=asked_by,
        )
        return Quantization(estimate=estimate, job=job)


def _commonest_dtype(checkpoint: Checkpoint) -> str:
    """Return the dtype of most of a checkpoint's bytes; raises InvalidCheckpoint where that is none to quantize."""
    counts: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        counts[tensor.dtype] += tensor.stored_bytes
    (commonest, _), *_ = counts.most_common(1)
    if commonest not in DTYPES:
        raise InvalidCheckpoint(
            f"The checkpoint is stored as {commonest}; weights to quantize are {', '.join(ORIGINAL_DTYPES)}.",
            pointer="/weights/path",
        )
    return DTYPES[commonest]
