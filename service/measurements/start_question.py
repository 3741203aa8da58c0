"""The serving question that a start-up log is the answer to, where no plan was named."""

from __future__ import annotations

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.serving.startup_log import LOG_POINTER, StartupLog
from plimsoll.service.requests.hardware import OneHardware
from plimsoll.service.requests.measurements import MeasurementRequest
from plimsoll.service.requests.serving import InferRequest, ServingLayoutPart, ServingPart

# What engines call the formats of weights (vllm/model_executor/layers/quantization/__init__.py) and of a cache; those
# that several formats share are asked for.
QUANTIZATIONS = {"fp8": "fp8", "bitsandbytes": "nf4", "mxfp4": "mxfp4", "awq": "int4", "awq_marlin": "int4"}
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32"}
CACHES = {"fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "bfloat16": "bf16", "nvfp4": "nvfp4"}


def question_of_log(log: StartupLog, request: MeasurementRequest) -> InferRequest:
    """Return the question whose plan is of the start that was logged; raise `InvalidQuestion` for what is missing."""
    if request.framework is not None and request.framework != log.engine:
        raise InvalidQuestion(f"The log is of {log.engine}.", pointer="/framework")
    model = request.model or log.model
    version = request.engine_version or log.engine_version
    if model is None:
        raise InvalidQuestion("The log does not say which model was loaded; give it.", pointer="/model")
    if version is None:
        raise InvalidQuestion("The log does not say the engine's version; give it.", pointer="/engine_version")
    tensor, attention, replicas = _ranks(log)
    pipeline = log.pipeline_parallel or 1
    return InferRequest(
        model=model,
        hardware=OneHardware(gpu=request.gpu or "", gpus=tensor * attention * pipeline * replicas),
        serving=ServingPart.model_validate(
            {
                "weights": request.weights or _weights(log),
                "kv_cache": request.kv_cache or _cache(log),
                "engine": log.engine,
                "engine_version": version,
                "max_model_len": log.max_model_len,
                "max_num_batched_tokens": log.max_num_batched_tokens,
                "max_num_seqs": log.max_num_seqs,
                "gpu_memory_utilization": log.gpu_memory_utilization,
            }
        ),
        layout=ServingLayoutPart(
            tensor_parallel=tensor,
            pipeline_parallel=pipeline,
            attention_data_parallel=attention,
            data_parallel=replicas,
            decode_context_parallel=log.decode_context_parallel or 1,
        ),
    )


def _ranks(log: StartupLog) -> tuple[int, int, int]:
    """Return tensor ranks, attention ranks and replicas; a vLLM that names data parallel ranks runs replicas."""
    tensor, data = log.tensor_parallel or 1, log.data_parallel or 1
    if not log.has_attention_data_parallel:
        return tensor, 1, data
    if tensor % data:
        raise InvalidQuestion(f"dp_size {data} does not divide tp_size {tensor}.", pointer=LOG_POINTER)
    return tensor // data, data, 1


def _weights(log: StartupLog) -> str | None:
    """Return the format the log states, None where the checkpoint's own name or config says it."""
    if log.quantization is None:
        # Nothing else is said of a checkpoint that is not quantized; its catalogue entry may still be.
        return None if log.weight_dtype is None else DTYPES.get(log.weight_dtype)
    if log.quantization in QUANTIZATIONS:
        return QUANTIZATIONS[log.quantization]
    raise InvalidQuestion(
        f"Which format {log.quantization!r} is the log does not say; give weights.", pointer="/weights"
    )


def _cache(log: StartupLog) -> str | None:
    if log.kv_cache_dtype is None:
        return None
    if log.kv_cache_dtype in CACHES:
        return CACHES[log.kv_cache_dtype]
    raise InvalidQuestion(f"A cache in {log.kv_cache_dtype!r} is not known; give kv_cache.", pointer="/kv_cache")
