"""The job of `POST /quantize`: every matrix of a model quantized, restored and measured."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from typing import Any

import torch

from planners.architecture import Weight
from planners.errors import InvalidModelConfig, NotYetAvailable
from planners.huggingface import describe_config
from planners.quantization import (
    estimate_with,
    quantized_weights,
    scheme_settings,
)
from planners.quantized_stacks import matrix_shape
from service.worker.child_main import peak_host_bytes
from service.worker.quantization.chunk_workers import ChunkWorkers
from service.worker.quantization.error import ErrorSums, quantization_error
from service.worker.quantization.initialization import fill_normal
from service.worker.quantization.quantized import NonFiniteWeights, Quantizer
from service.worker.quantization.report import ModelReport, TensorReport, model_report
from service.worker.quantization.schemes import quantizer
from service.worker.tasks import Report

# transformers 5.23: the initializer_range of LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config and GPT2Config.
DEFAULT_INITIALIZER_RANGE = 0.02
ORIGINAL_DTYPE, TORCH_DTYPE = "bf16", torch.bfloat16
TENSORS_LEFT_ALONE_NOTE = "Weights that the scheme leaves alone were counted, not initialised."


def run(request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Quantize a model's weights, initialised one tensor at a time; return sizes, errors and speed.

    `request` holds `model` {"name", "config"}, `scheme` and optionally
    `double_quantization`, `block_size`, `weights` ("random"), `seed`, `output`.
    Progress counts the original bytes of what is quantized. Raises
    `NotYetAvailable` for real checkpoints and written output, what
    `describe_config` and `scheme_settings` raise, and `NonFiniteWeights` naming
    the tensor.
    """
    _refuse_what_is_not_there(request)
    config = request["model"]["config"]
    spec = describe_config(config, name=request["model"]["name"])
    settings = scheme_settings(
        request["scheme"],
        double_quantization=request.get("double_quantization", False),
        block_size=request.get("block_size"),
    )
    estimate = estimate_with(settings, spec, original_dtype=ORIGINAL_DTYPE)
    deviation = _initializer_range(config)
    scheme = quantizer(settings)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    total_bytes = estimate.quantized_parameters * TORCH_DTYPE.itemsize
    done_bytes = 0
    tensors: list[TensorReport] = []
    sums = ErrorSums()
    started = time.perf_counter()
    with ChunkWorkers(device) as workers:
        for name, weight in quantized_weights(spec, settings.scheme):
            report(done_bytes, total_bytes, "bytes", name)
            values = _initialised(name, weight, int(request.get("seed", 0)), deviation, workers)
            tensor, error = quantized_tensor_report(name, values, scheme, workers)
            tensors.append(tensor)
            sums += error
            done_bytes += tensor.original_bytes
    report(done_bytes, total_bytes, "bytes", "done")
    notes = (
        f"Weights drawn from a normal distribution about 0 with standard deviation {deviation} and rounded to bf16.",
        TENSORS_LEFT_ALONE_NOTE,
    )
    whole: ModelReport = model_report(
        estimate,
        tensors,
        sums,
        device=_device_name(device),
        torch_version=torch.__version__,
        wall_seconds=time.perf_counter() - started,
        peak_host_bytes=peak_host_bytes(),
        peak_device_bytes=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0,
        notes=notes,
    )
    return dataclasses.asdict(whole)


def quantized_tensor_report(
    name: str, weight: torch.Tensor, scheme: Quantizer, workers: ChunkWorkers
) -> tuple[TensorReport, ErrorSums]:
    """Return one tensor's sizes, error and quantizing time, and the sums behind the error.

    The time is the quantization's own: initialisation, restoring and comparing
    are left out. Raises `NonFiniteWeights` naming the tensor.
    """
    _wait_for(weight.device)
    started = time.perf_counter()
    try:
        quantized = scheme.quantize(weight, workers)
    except NonFiniteWeights as error:
        raise NonFiniteWeights(f"{name}: {error}") from error
    _wait_for(weight.device)
    seconds = time.perf_counter() - started
    error_sums = quantization_error(weight, quantized, scheme, workers)
    return (
        TensorReport(
            name=name,
            shape=tuple(weight.shape),
            original_bytes=weight.nbytes,
            quantized_bytes=quantized.bytes,
            relative_error=error_sums.relative_error,
            sqnr_db=error_sums.sqnr_db,
            max_abs_error=error_sums.max_abs_error,
            seconds=seconds,
            bytes_per_second=weight.nbytes / seconds,
        ),
        error_sums,
    )


def _refuse_what_is_not_there(request: Mapping[str, Any]) -> None:
    if request.get("weights", "random") != "random":
        raise NotYetAvailable(
            "Quantizing a real checkpoint is not available yet; use weights 'random'.", pointer="/weights"
        )
    if request.get("output") is not None:
        raise NotYetAvailable("Writing a quantized checkpoint is not available yet.", pointer="/output")


def _initializer_range(config: Mapping[str, Any]) -> float:
    value = config.get("initializer_range")
    if value is None:
        return DEFAULT_INITIALIZER_RANGE
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise InvalidModelConfig(
            "'initializer_range' must be a positive number.", pointer="/model/config/initializer_range"
        )
    return float(value)


def _initialised(
    name: str, weight: Weight, seed: int, standard_deviation: float, workers: ChunkWorkers
) -> torch.Tensor:
    values = torch.empty(matrix_shape(weight), dtype=TORCH_DTYPE, device=workers.device)
    fill_normal(values, name=name, seed=seed, standard_deviation=standard_deviation, workers=workers)
    return values


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
