"""`POST /plan/train`: a training job to plan."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from planners.architecture import ModelSpec
from planners.catalogue import catalogue
from planners.errors import InvalidQuestion
from planners.hardware import Hardware
from planners.huggingface import describe_config
from planners.questions import Companion, Evaluation, LayoutRequest, Lora, Recompute, Resilience, TrainingQuestion
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
KernelChoice: TypeAlias = Literal["eager", "fused", "compiled"]
Framework: TypeAlias = Literal[
    "any", "reference", "ddp", "fsdp2", "deepspeed", "megatron", "megatron-deepspeed", "accelerate", "torchtune",
    "litgpt", "nanotron", "composer", "atorch",
]  # fmt: skip
TrainingObjective: TypeAlias = Literal["throughput", "fewest_gpus", "cost", "deadline"]
ValidationLevel: TypeAlias = Literal["count", "trace", "device"]

MOST_LAYERS = 10_000
MOST_LORA_RANK = 65_536
MOST_TARGET_MODULES = 100
MOST_COMPANIONS = 8


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


class EvaluationPart(Wire):
    """Evaluations between the steps: sequences a batch and replica, and whether a trainer keeps their logits."""

    batch_size: MicroBatch = Evaluation().batch_size
    samples: Sequences = Evaluation().samples
    keeps_logits: bool = Evaluation().keeps_logits
    accumulation_steps: Sequences | None = None


class CompanionPart(Wire):
    """A frozen model beside the one that learns, as TRL's trainers hold it; without `model` the policy's own."""

    role: Literal["reference", "reward", "value"]
    model: Annotated[Name | None, Field(description="A catalogue id or alias.")] = None
    precision: Literal["fp32", "bf16", "fp16"] = "bf16"
    trainable: bool = False
    offload: bool = False


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
    kernels: Annotated[
        KernelChoice | None,
        Field(
            description="How the model's operations are run: one by one, by hand-written kernels (Liger, Transformer "
            "Engine), or by torch.compile. Absent: as the framework does."
        ),
    ] = None
    evaluation: EvaluationPart | None = None
    companions: Annotated[
        tuple[CompanionPart, ...],
        Field(
            max_length=MOST_COMPANIONS,
            strict=False,
            description="Frozen models beside the one that learns. Of DPO's pairs each answer counts as a sequence.",
        ),
    ] = ()


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
            kernels=training.kernels,
            evaluation=None if training.evaluation is None else Evaluation(**training.evaluation.model_dump()),
            companions=tuple(_companion(place, asked) for place, asked in enumerate(training.companions)),
            lora=_lora(training.lora),
            layout=LayoutRequest(**self.layout.model_dump()),
            objective=self.objective,
            deadline_seconds=self.deadline_seconds,
            framework=self.framework,
            resilience=Resilience(**self.resilience.model_dump()),
        )


def _companion(place: int, asked: CompanionPart) -> Companion:
    if asked.model is None:
        model = None
    else:
        found = catalogue().model(asked.model, pointer=f"/training/companions/{place}/model")
        model = describe_config(found.config, name=found.id)
    return Companion(
        role=asked.role,
        model=model,
        precision=asked.precision,
        trainable=asked.trainable,
        offload=asked.offload,
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
