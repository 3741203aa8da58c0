"""The job of `POST /quantize`: every matrix of a model quantized, restored, measured and, where asked, written."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidModelConfig
from plimsoll.planners.quantization.planning import (
    QuantizationEstimate,
    bytes_by_scheme,
    check_writable,
    quantization_estimate,
    scheme_settings,
)
from plimsoll.service.checkpoints.headers import checkpoint_state, read_checkpoint
from plimsoll.service.ground.allowed_paths import allowed_path
from plimsoll.service.ground.errors import InvalidCheckpoint
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.config_files import CONFIG_FILE, read_config
from plimsoll.service.worker.processes.child_main import peak_host_bytes
from plimsoll.service.worker.processes.termination import termination_raises
from plimsoll.service.worker.quantization.checkpoints.formats import checkpoint_format, quantized_config
from plimsoll.service.worker.quantization.checkpoints.output_folder import (
    REPORT_FILE,
    SUMS_FILE,
    OutputFolder,
    output_folder,
    published_result,
)
from plimsoll.service.worker.quantization.checkpoints.progress import ByteProgress
from plimsoll.service.worker.quantization.checkpoints.side_files import copied_side_files
from plimsoll.service.worker.quantization.checkpoints.sources import (
    POINTER,
    RANDOM_DTYPE,
    READ_DTYPES,
    CheckpointSource,
    RandomSource,
    SourceTensor,
    WeightSource,
    matrix,
)
from plimsoll.service.worker.quantization.checkpoints.writer import (
    CheckpointWriter,
    WrittenCheckpoint,
    planned_shards,
)
from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers
from plimsoll.service.worker.quantization.measuring.error import ErrorSums
from plimsoll.service.worker.quantization.measuring.measured_tensor import MeasuredTensor, TensorMeasurer
from plimsoll.service.worker.quantization.measuring.report import ModelReport, OutputReport, model_report
from plimsoll.service.worker.quantization.schemes.fast_path import kernels_for_job
from plimsoll.service.worker.quantization.schemes.quantizers import quantizer
from plimsoll.service.worker.tasks import Report

# transformers 5.23: the initializer_range of LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config and GPT2Config.
DEFAULT_INITIALIZER_RANGE = 0.02
DTYPE_NAMES: Mapping[str, str] = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}
TENSORS_LEFT_ALONE_NOTE = "Weights that the scheme leaves alone were counted, not {}."


def run(request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Quantize a model's weights one tensor at a time; return sizes, errors and speed.

    `request` holds `model` {"name", "config"}, `scheme` and optionally
    `double_quantization`, `block_size`, `weights` ("random" or {"path"}), `seed`
    and `output`, a folder to write to. Paths must lie under the roots that this
    process' settings allow. Progress counts original bytes. Raises what
    `describe_config`, `scheme_settings`, `allowed_path` and `read_checkpoint`
    raise, `InvalidCheckpoint`, `NotYetAvailable` and `InvalidQuestion` for an
    output that cannot be written, and `NonFiniteWeights` naming the tensor.
    """
    with termination_raises():
        return _Job(request, report).result()


class _Job:
    """One request, understood: the model, the scheme, and where weights come from and go to."""

    def __init__(self, request: Mapping[str, Any], report: Report) -> None:
        self._request = request
        self._report = report
        self._roots = Settings()
        self._config: Mapping[str, Any] = request["model"]["config"]
        self._spec = describe_config(self._config, name=request["model"]["name"])
        self._settings = scheme_settings(
            request["scheme"],
            double_quantization=request.get("double_quantization", False),
            block_size=request.get("block_size"),
        )
        self._folder = self._source_folder()
        self._source = self._made_source()
        self._started = time.perf_counter()

    def result(self) -> dict[str, Any]:
        """Do it and return the report."""
        output = self._request.get("output")
        if output is None:
            return self._run(None)
        check_writable(self._settings, self._spec)
        path = allowed_path(output, self._roots.output_roots, pointer="/output", kind="output")
        identity = self._identity()
        done = published_result(path, identity)
        if done is not None:
            return done
        with output_folder(path, identity) as folder:
            result = self._run(folder, path)
            folder.write_json(REPORT_FILE, {"identity": identity, "result": result})
            folder.publish()
        return result

    def _run(self, folder: OutputFolder | None, path: Path | None = None) -> dict[str, Any]:
        quantized = [tensor for tensor in self._source.tensors if tensor.reason is None]
        read = quantized if folder is None else self._source.tensors
        total_bytes = sum(tensor.stored_bytes for tensor in read)
        progress = ByteProgress(self._report, total_bytes, limit_seconds=self._roots.job_timeout_seconds)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        parameters = sum(math.prod(tensor.shape) for tensor in quantized)
        kernels, speed_note = kernels_for_job(quantizer(self._settings), parameters=parameters, device=device)
        notes = [*self._source.notes, speed_note]
        written = None
        with ChunkWorkers(device, kernels=kernels) as workers:
            measurer = TensorMeasurer(self._settings, workers)
            if folder is None:
                measured = [self._measured(tensor, measurer, workers, progress) for tensor in quantized]
                notes.append(TENSORS_LEFT_ALONE_NOTE.format("initialised" if self._folder is None else "read"))
            else:
                checkpoint = checkpoint_format(self._settings)
                writer = CheckpointWriter(self._source, checkpoint, measurer, workers, progress)
                written = writer.write(planned_shards(self._source.tensors, checkpoint), folder)
                measured = written.measured
                notes += [*checkpoint.notes, *_written_notes(written)]
        progress.end()
        output = None if path is None or folder is None or written is None else self._finished(folder, written, path)
        return self._reported(measured, device, notes, output)

    def _measured(
        self, tensor: SourceTensor, measurer: TensorMeasurer, workers: ChunkWorkers, progress: ByteProgress
    ) -> MeasuredTensor:
        stored = self._source.load(tensor, workers)
        one, _ = measurer.measure(tensor.name, matrix(tensor, stored).to(workers.device))
        progress.advance(tensor)
        return one

    def _finished(self, folder: OutputFolder, written: WrittenCheckpoint, path: Path) -> OutputReport:
        checkpoint = checkpoint_format(self._settings)
        folder.write_json(CONFIG_FILE, quantized_config(self._output_config(), checkpoint, self._source.tensors))
        if self._folder is not None:
            for name, content in copied_side_files(self._folder, self._roots.model_roots):
                folder.write_bytes(name, content)
        sums = folder.sums(written.sha256)
        folder.write_bytes(SUMS_FILE, "".join(f"{sum_}  {name}\n" for name, sum_ in sums.items()).encode())
        return OutputReport(path=self._below_its_root(path), file_bytes=written.file_bytes, sha256=sums)

    def _output_config(self) -> Mapping[str, Any]:
        """Return the `config.json` beside the weights, or where there is none the request's."""
        if self._folder is None or not (self._folder / CONFIG_FILE).exists():
            return self._config
        return read_config(self._folder, self._roots.model_roots, pointer=POINTER)

    def _below_its_root(self, path: Path) -> str:
        """Return an output's path as a client may name it, without the root that it lies in."""
        roots = [root.resolve() for root in self._roots.output_roots]
        return next(str(path.relative_to(root)) for root in roots if path.is_relative_to(root))

    def _reported(
        self, measured: list[MeasuredTensor], device: torch.device, notes: list[str], output: OutputReport | None
    ) -> dict[str, Any]:
        sums = sum((one.sums for one in measured), ErrorSums())
        estimate = self._estimate()
        whole: ModelReport = model_report(
            estimate,
            [one.report for one in measured],
            sums,
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            torch_version=torch.__version__,
            skipped_bytes=sum(tensor.stored_bytes for tensor in self._source.tensors if tensor.reason is not None),
            quantized_bytes_by_scheme=bytes_by_scheme(self._spec, original_dtype=estimate.original_dtype),
            output=output,
            wall_seconds=time.perf_counter() - self._started,
            peak_host_bytes=peak_host_bytes(),
            peak_device_bytes=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0,
            notes=tuple(notes),
        )
        return dataclasses.asdict(whole)

    def _estimate(self) -> QuantizationEstimate:
        dtypes = [tensor.dtype for tensor in self._source.tensors if tensor.reason is None] or [RANDOM_DTYPE]
        commonest = max(READ_DTYPES, key=dtypes.count)
        return quantization_estimate(self._settings, self._spec, original_dtype=DTYPE_NAMES[commonest])

    def _source_folder(self) -> Path | None:
        weights = self._request.get("weights", "random")
        if weights == "random":
            return None
        return allowed_path(weights["path"], self._roots.model_roots, pointer=POINTER)

    def _made_source(self) -> WeightSource:
        scheme = self._settings.scheme
        if self._folder is None:
            return RandomSource(
                self._spec,
                scheme,
                seed=int(self._request.get("seed", 0)),
                standard_deviation=_initializer_range(self._config),
            )
        checkpoint = read_checkpoint(self._folder, self._roots.model_roots, pointer=POINTER)
        if checkpoint is None:
            raise InvalidCheckpoint("The folder holds no safetensors checkpoint.", pointer=POINTER)
        return CheckpointSource(checkpoint, self._spec, scheme, roots=self._roots.model_roots)

    def _identity(self) -> dict[str, Any]:
        """Return what decides every byte of the output; the source's place and state as a sum, for it is published."""
        identity = {
            "config": self._output_config(),
            "settings": dataclasses.asdict(self._settings),
            "seed": int(self._request.get("seed", 0)) if self._folder is None else None,
            "source_sha256": None if self._folder is None else _source_sha256(self._folder),
            "torch": torch.__version__,
        }
        as_stored: dict[str, Any] = json.loads(json.dumps(identity))
        return as_stored


def _source_sha256(folder: Path) -> str:
    return hashlib.sha256(json.dumps([str(folder), checkpoint_state(folder)]).encode()).hexdigest()


def _written_notes(written: WrittenCheckpoint) -> list[str]:
    notes = []
    if written.shards_found:
        notes.append(f"{written.shards_found} shard(s) had been written by an attempt that was killed.")
    if written.non_finite:
        notes.append(f"Copied as they are, with values that are not finite: {', '.join(written.non_finite)}.")
    return notes


def _initializer_range(config: Mapping[str, Any]) -> float:
    value = config.get("initializer_range")
    if value is None:
        return DEFAULT_INITIALIZER_RANGE
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise InvalidModelConfig(
            "'initializer_range' must be a positive number.", pointer="/model/config/initializer_range"
        )
    return float(value)
