"""`POST /plan/train`: a training job to plan."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from planners.architecture import ModelSpec
from planners.errors import InvalidQuestion
from planners.hardware import Hardware
from planners.questions import LayoutRequest, Lora, Recompute, Resilience, TrainingQuestion
from service.requests.hardware import HardwareRequest
from service.requests.models import ModelRef
from service.requests.values import (
    Degree,
    MicroBatch,
    Name,
    Rate,
    Seconds,
    Sequences,
    SequenceTokens,
    Tokens,
    Wire,
    whole,
)

Method: TypeAlias = Literal["full", "lora", "qlora"]
Precision: TypeAlias = Literal["fp32", "tf32", "fp16-mixed", "bf16-mixed", "bf16", "fp8-mixed"]
Optimizer: TypeAlias = Literal[
    "adamw", "adamw-8bit", "paged-adamw", "paged-adamw-8bit", "sgd", "sgd-momentum", "adafactor", "lion", "muon"
]
StateDtype: TypeAlias = Literal["fp32", "bf16", "fp16", "fp8", "int8"]
RecomputeMode: TypeAlias = Literal["none", "selective", "full"]
Framework: TypeAlias = Literal[
    "any", "reference", "ddp", "fsdp2", "deepspeed", "megatron", "megatron-deepspeed", "accelerate", "torchtune",
    "litgpt", "nanotron", "composer", "atorch",
]  # fmt: skip
TrainingObjective: TypeAlias = Literal["throughput", "fewest_gpus", "cost", "deadline"]
ValidationLevel: TypeAlias = Literal["count", "trace", "device"]

MOST_LAYERS = 10_000
MOST_LORA_RANK = 65_536
MOST_TARGET_MODULES = 100
MOST_EXPERT_IMBALANCE = 10_000.0  # no rank gets more than the tokens of all that share the experts


class LoraPart(Wire):
    """Low-rank adapters, and the matrices they stand beside."""

    rank: Annotated[int, *whole(least=1, most=MOST_LORA_RANK)] = Lora().rank
    target_modules: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MOST_TARGET_MODULES, strict=False)] = (
        Lora().target_modules
    )
    double_quantization: bool = Lora().double_quantization


class FullLayers(Wire):
    """Full recompute of that many layers of each stage."""

    full_layers: Annotated[int, *whole(least=0, most=MOST_LAYERS)]


def _recompute_form(value: Any) -> str:
    return "(layers)" if isinstance(value, dict | FullLayers) else "(mode)"


RecomputeRef: TypeAlias = Annotated[
    Annotated[RecomputeMode, Tag("(mode)")] | Annotated[FullLayers, Tag("(layers)")], Discriminator(_recompute_form)
]


class TrainingPart(Wire):
    """The job itself. What is absent is searched, or taken as the framework does."""

    method: Method = "full"
    lora: LoraPart | None = None
    precision: Precision = "bf16-mixed"
    optimizer: Optimizer = "adamw"
    sequence_length: SequenceTokens
    global_batch_size: Sequences
    tokens: Tokens | None = None
    gradient_dtype: StateDtype | None = None
    optimizer_state_dtype: StateDtype | None = None
    micro_batch_size: MicroBatch | None = None
    recompute: RecomputeRef | None = None
    activation_offload: bool | None = None
    fused_cross_entropy: bool | None = None
    attention: Literal["flash", "eager"] = "flash"
    expert_imbalance: Annotated[float, Field(ge=1, le=MOST_EXPERT_IMBALANCE)] = 1.0


class LayoutPart(Wire):
    """The degrees that are fixed; absent ones are searched."""

    data_parallel: Degree | None = None
    tensor_parallel: Degree | None = None
    pipeline_parallel: Degree | None = None
    virtual_pipeline: Degree | None = None
    context_parallel: Degree | None = None
    expert_parallel: Degree | None = None
    sequence_parallel: bool | None = None
    zero_stage: Annotated[int, *whole(least=0, most=3)] | None = None
    shard_group: Degree | None = None
    offload: Literal["none", "optimizer", "optimizer+parameters"] | None = None
    offload_target: Literal["cpu", "nvme"] | None = None


class ResiliencePart(Wire):
    """How often hardware fails, and what a restart costs."""

    gpu_failures_per_month: Annotated[float, Field(ge=0, lt=1)] = Resilience().gpu_failures_per_month
    restart_seconds: Seconds | None = None
    checkpoint_bytes_per_second: Rate | None = None


class TrainRequest(Wire):
    """A training job: the model, the GPUs, and what is wanted of them."""

    model: ModelRef
    hardware: HardwareRequest
    training: TrainingPart
    layout: LayoutPart = LayoutPart()
    objective: TrainingObjective = "throughput"
    deadline_seconds: Seconds | None = None
    framework: Framework = "any"
    resilience: ResiliencePart = ResiliencePart()
    # The wire calls it `validate`, which is a method of every Pydantic model.
    validation: Annotated[Literal["none", "count", "trace", "device"], Field(alias="validate")] = "none"

    def refuse_what_nothing_reads(self) -> None:
        """Raise InvalidQuestion for a part that the method or the objective leaves unread, so that none is ignored."""
        if self.training.lora is not None and self.training.method == "full":
            raise InvalidQuestion(
                "method 'full' has no adapters. Say method 'lora' or 'qlora', or leave lora away.",
                pointer="/training/lora",
            )
        if self.deadline_seconds is not None and self.objective != "deadline":
            raise InvalidQuestion(
                f"objective {self.objective!r} keeps no deadline. Say objective 'deadline', or leave it away.",
                pointer="/deadline_seconds",
            )

    def to_question(self, model: ModelSpec, hardware: Hardware) -> TrainingQuestion:
        """Return the planner's question; raises InvalidQuestion for what nothing asked for would read."""
        training = self.training
        self.refuse_what_nothing_reads()
        return TrainingQuestion(
            model=model,
            hardware=hardware,
            method=training.method,
            precision=training.precision,
            optimizer=training.optimizer,
            sequence_length=training.sequence_length,
            global_batch_size=training.global_batch_size,
            tokens=training.tokens,
            gradient_dtype=training.gradient_dtype,
            optimizer_state_dtype=training.optimizer_state_dtype,
            micro_batch_size=training.micro_batch_size,
            recompute=_recompute(training.recompute),
            activation_offload=training.activation_offload,
            fused_cross_entropy=training.fused_cross_entropy,
            attention=training.attention,
            expert_imbalance=training.expert_imbalance,
            lora=_lora(training.lora),
            layout=LayoutRequest(**self.layout.model_dump()),
            objective=self.objective,
            deadline_seconds=self.deadline_seconds,
            framework=self.framework,
            resilience=Resilience(**self.resilience.model_dump()),
        )


def _recompute(asked: RecomputeMode | FullLayers | None) -> Recompute | None:
    if asked is None:
        return None
    if isinstance(asked, FullLayers):
        return Recompute(mode="full", full_layers=asked.full_layers)
    return Recompute(mode=asked)


def _lora(asked: LoraPart | None) -> Lora:
    if asked is None:
        return Lora()
    return Lora(
        rank=asked.rank,
        target_modules=asked.target_modules,
        double_quantization=asked.double_quantization,
    )
