"""The job to trace, read from a stored plan and the request it answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planners.errors import InvalidQuestion, NotYetAvailable

TRACED_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
TRACED_PRECISIONS = ("fp32", "tf32", "fp16-mixed", "bf16-mixed", "bf16")
TRACED_OPTIMIZERS = ("adamw", "sgd", "sgd-momentum")
TRACED_KERNELS = (None, "eager", "fused")
RECOMPUTE_MODES = ("none", "selective", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One rank's training step: model, batch, precision and layout.

    `config` is the model's `config.json`. `recompute_layers` limits full
    recomputation to that many layers of a stage. `data_parallel` ranks are grouped
    into copies of `shard_group` ranks.
    """

    model_name: str
    config: Mapping[str, Any]
    framework: str
    sequence_length: int
    micro_batch_size: int
    accumulation_steps: int
    precision: str
    optimizer: str
    attention: str
    recompute: str
    recompute_layers: int | None
    fused_cross_entropy: bool
    data_parallel: int
    tensor_parallel: int
    pipeline_parallel: int
    sequence_parallel: bool
    zero_stage: int
    shard_group: int
    kernels: str | None = None

    @property
    def world_size(self) -> int:
        """Return the number of ranks of the whole job."""
        return self.data_parallel * self.tensor_parallel * self.pipeline_parallel

    @property
    def micro_batch_tokens(self) -> int:
        """Return the tokens of one micro-batch."""
        return self.micro_batch_size * self.sequence_length

    @property
    def vocabulary_size(self) -> int:
        """Return the model's vocabulary."""
        return int(self.config["vocab_size"])


def read_job(request: Mapping[str, Any]) -> TraceJob:
    """Return the job of a validation request.

    Raises `NotYetAvailable`, naming it, for whatever cannot be traced, and
    `InvalidQuestion` for a request that lacks its parts.
    """
    try:
        training, layout = request["request"]["training"], request["plan"]["layout"]
        model = request["model"]
        job = TraceJob(
            model_name=model["name"],
            config=model["config"],
            framework=layout["framework"],
            sequence_length=training["sequence_length"],
            micro_batch_size=layout["micro_batch_size"],
            accumulation_steps=layout["gradient_accumulation_steps"],
            precision=training.get("precision", "bf16-mixed"),
            optimizer=training.get("optimizer", "adamw"),
            attention=training.get("attention") or "flash",
            kernels=training.get("kernels"),
            recompute=layout["recompute"],
            recompute_layers=layout.get("recompute_layers"),
            fused_cross_entropy=bool(layout.get("fused_cross_entropy", False)),
            data_parallel=layout["data_parallel"],
            tensor_parallel=layout["tensor_parallel"],
            pipeline_parallel=layout["pipeline_parallel"],
            sequence_parallel=layout["sequence_parallel"],
            zero_stage=layout["zero_stage"],
            shard_group=layout["shard_group"],
        )
    except KeyError as missing:
        raise InvalidQuestion(f"The plan to validate lacks {missing}.") from missing
    _refuse_what_is_not_traced(training, layout)
    _refuse_job(job)
    return job


def _refuse_what_is_not_traced(training: Mapping[str, Any], layout: Mapping[str, Any]) -> None:
    if training.get("method", "full") != "full":
        raise NotYetAvailable(f"Method {training['method']!r} is not traced yet.", pointer="/training/method")
    for field, natural in (
        ("pipeline_parallel", 1),
        ("virtual_pipeline", 1),
        ("context_parallel", 1),
        ("expert_parallel", 1),
        ("offload", "none"),
        ("activation_offload", False),
    ):
        value = layout.get(field, natural)
        if value != natural:
            raise NotYetAvailable(f"A layout with {field} {value!r} is not traced yet.", pointer=f"/layout/{field}")
    if training.get("expert_imbalance", 1.0) != 1.0:
        raise NotYetAvailable("expert_imbalance is not traced yet.", pointer="/training/expert_imbalance")
    for field in ("gradient_dtype", "optimizer_state_dtype", "evaluation", "companions"):
        if training.get(field):
            raise NotYetAvailable(f"{field} is not traced yet.", pointer=f"/training/{field}")


def _refuse_job(job: TraceJob) -> None:
    for field, value, known in (
        ("/model/config/model_type", job.config.get("model_type"), TRACED_MODEL_TYPES),
        ("/training/precision", job.precision, TRACED_PRECISIONS),
        ("/training/optimizer", job.optimizer, TRACED_OPTIMIZERS),
        ("/training/attention", job.attention, ("flash", "eager")),
        ("/training/kernels", job.kernels, TRACED_KERNELS),
        ("/layout/recompute", job.recompute, RECOMPUTE_MODES),
        ("/layout/zero_stage", job.zero_stage, (0, 1, 2, 3)),
    ):
        if value not in known:
            raise NotYetAvailable(f"{value!r} is not traced yet; traced are {known}.", pointer=field)
    tensor_parallel = job.tensor_parallel
    for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        length = job.config.get(key) or job.config["num_attention_heads"]
        if length % tensor_parallel:
            raise NotYetAvailable(
                f"torch's tensor parallelism needs {key} ({length}) divisible by {tensor_parallel}.",
                pointer="/layout/tensor_parallel",
            )
    if job.sequence_parallel and job.sequence_length % tensor_parallel:
        raise NotYetAvailable(
            f"A sequence of {job.sequence_length} tokens uneven over {tensor_parallel} ranks is not traced yet.",
            pointer="/layout/sequence_parallel",
        )
