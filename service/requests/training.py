"""`POST /plan/train`: a training job to plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidQuestion, UnknownName
from plimsoll.planners.ground.figures import figure
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.ground.terms import (
    HIGHEST_ZERO_STAGE,
    AttentionKind,
    CompanionRole,
    GradientCompression,
    KernelKind,
    Method,
    Offload,
    OffloadTarget,
    PipelineSchedule,
    RecomputeMode,
    TrainingObjective,
)
from plimsoll.planners.jobs.abilities import attention_kinds
from plimsoll.planners.jobs.offload_modules import OFFLOAD_MODULES
from plimsoll.planners.jobs.pipeline_layouts import LONGEST_LIST, NAMED
from plimsoll.planners.jobs.recompute_modules import MODULES
from plimsoll.planners.questions import (
    GPU_FAILURES_PER_MONTH,
    PESSIMISTIC_GPU_FAILURES_PER_MONTH,
    Companion,
    Evaluation,
    LayoutRequest,
    Lora,
    NamedLayout,
    Overlap,
    Recompute,
    Resilience,
    TrainingQuestion,
)
from plimsoll.planners.stacks.folders import shipped
from plimsoll.planners.stacks.profile import load_profile, stack_names, usual_precision
from plimsoll.service.requests.defaults import ATTENTION, GLOBAL_BATCH_SIZE, PRECISION, SEQUENCE_LENGTH
from plimsoll.service.requests.hardware import HardwareRequest
from plimsoll.service.requests.models import ModelRef
from plimsoll.service.requests.values import (
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

Precision: TypeAlias = Literal["fp32", "tf32", "fp16-mixed", "bf16-mixed", "bf16", "fp8-mixed"]
Optimizer: TypeAlias = Literal[
    "adamw", "adamw-8bit", "paged-adamw", "paged-adamw-8bit", "sgd", "sgd-momentum", "adafactor", "lion", "muon"
]
StateDtype: TypeAlias = Literal["fp32", "bf16", "fp16", "fp8", "int8"]
RecomputeModule: TypeAlias = Literal["core_attn", "layernorm", "mlp", "moe", "moe_act", "shared_experts", "mla_up_proj"]
OffloadModule: TypeAlias = Literal[
    "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act"
]
ValidationLevel: TypeAlias = Literal["count", "trace", "device"]
if TYPE_CHECKING:
    Stack: TypeAlias = str
    Framework: TypeAlias = str
else:
    Stack = Literal[shipped().offered()]
    Framework = Literal["any", Stack]

MOST_LAYERS = 10_000
MOST_LORA_RANK = 65_536
MOST_TARGET_MODULES = 100
MOST_COMPARED = 16
MOST_COMPANIONS = 8
MOST_FURTHER_TOKENS = 64
MOST_EXPERT_IMBALANCE = 10_000.0  # no rank gets more than the tokens of all that share the experts


class LoraPart(Wire):
    """Low-rank adapters, and the matrices they stand beside."""

    rank: Annotated[int, *whole(least=1, most=MOST_LORA_RANK)] = Lora().rank
    target_modules: Annotated[
        Literal["all-linear"]
        | Annotated[tuple[Name, ...], Field(min_length=1, max_length=MOST_TARGET_MODULES, strict=False)],
        Field(
            description="Names of modules or the ends of their paths (`q_proj`, `self_attn.q_proj`), `lm_head` and "
            "`embed_tokens` among them, or `all-linear`: every linear layer but the head. A name that the model lacks "
            "is refused; of the default ones those count that it has."
        ),
    ] = Lora().target_modules
    modules_to_save: Annotated[
        tuple[Name, ...],
        Field(
            max_length=MOST_TARGET_MODULES,
            strict=False,
            description="Modules of which a copy is trained whole, beside the frozen one (peft's `modules_to_save`).",
        ),
    ] = ()
    base_dtype: Annotated[
        Literal["fp32", "bf16", "fp16"] | None,
        Field(
            description="The dtype that the frozen base is held in, where it is not packed in 4 bits. "
            "Absent: as the framework loads it, which the assumptions say."
        ),
    ] = None
    double_quantization: bool = Lora().double_quantization
    dropout: Annotated[
        float | None,
        Field(
            ge=0,
            lt=1,
            description="The probability with which elements of an adapter's input are dropped. Any above 0 keeps a "
            "mask and what is left of the input for each adapter. Absent: as the framework does by itself.",
        ),
    ] = None


class FullLayers(Wire):
    """Full recompute of that many layers of each stage."""

    full_layers: Annotated[int, *whole(least=1, most=MOST_LAYERS)]


class EveryLayer(Wire):
    """Full recompute of every so-manieth layer of each stage (torchtitan's selective_ac_option)."""

    every: Annotated[int, *whole(least=1, most=MOST_LAYERS)]


class RecomputedModules(Wire):
    """The parts of every layer that are computed again (Megatron-LM's --recompute-modules)."""

    modules: Annotated[tuple[RecomputeModule, ...], Field(min_length=1, max_length=len(MODULES), strict=False)]


class OffloadedModules(Wire):
    """The parts of every layer that send what they keep to the host (Megatron-LM's --offload-modules)."""

    modules: Annotated[tuple[OffloadModule, ...], Field(min_length=1, max_length=len(OFFLOAD_MODULES), strict=False)]


class OffloadedLayers(Wire):
    """How many of the first layers send all they keep to the host (Megatron-LM's --cpu-offloading-num-layers)."""

    layers: Annotated[int, *whole(least=1, most=MOST_LAYERS)]


def _offload_form(value: Any) -> str:
    if isinstance(value, OffloadedLayers) or (isinstance(value, dict) and "layers" in value):
        return "(layers)"
    return "(modules)" if isinstance(value, dict | list | OffloadedModules) else "(all)"


ActivationOffloadRef: TypeAlias = Annotated[
    Annotated[bool, Tag("(all)")]
    | Annotated[OffloadedLayers, Tag("(layers)")]
    | Annotated[OffloadedModules, Tag("(modules)")],
    Discriminator(_offload_form),
    Field(
        description="Whether what layers keep waits on the host for its backward pass, which parts of them do, or how "
        "many of the first layers send all of it; true on a stack that sends parts means those that free at least half "
        "of what they send."
    ),
]


def _recompute_form(value: Any) -> str:
    if isinstance(value, RecomputedModules) or (isinstance(value, dict) and "modules" in value):
        return "(modules)"
    if isinstance(value, EveryLayer) or (isinstance(value, dict) and "every" in value):
        return "(every)"
    return "(layers)" if isinstance(value, dict | FullLayers) else "(mode)"


RecomputeRef: TypeAlias = Annotated[
    Annotated[RecomputeMode, Tag("(mode)")]
    | Annotated[FullLayers, Tag("(layers)")]
    | Annotated[EveryLayer, Tag("(every)")]
    | Annotated[RecomputedModules, Tag("(modules)")],
    Discriminator(_recompute_form),
]


class EvaluationPart(Wire):
    """Evaluations between the steps: sequences a batch and replica, and whether a trainer keeps their logits."""

    batch_size: MicroBatch = Evaluation().batch_size
    samples: Sequences = Evaluation().samples
    keeps_logits: bool = Evaluation().keeps_logits
    accumulation_steps: Sequences | None = None


class CompanionPart(Wire):
    """A model beside the policy as TRL holds it, without `model` the policy's own; a value model may learn."""

    role: CompanionRole
    model: Annotated[Name | None, Field(description="A catalogue id or alias.")] = None
    precision: Literal["fp32", "bf16", "fp16"] = "bf16"
    trainable: bool = False
    offload: bool = False


class TrainingPart(Wire):
    """The job itself. What is absent is searched, or taken as the framework does."""

    method: Method = "full"
    lora: LoraPart | None = None
    precision: Precision = PRECISION
    optimizer: Optimizer = "adamw"
    sequence_length: SequenceTokens = SEQUENCE_LENGTH
    global_batch_size: Sequences = GLOBAL_BATCH_SIZE
    tokens: Tokens | None = None
    gradient_dtype: StateDtype | None = None
    optimizer_state_dtype: StateDtype | None = None
    micro_batch_size: MicroBatch | None = None
    recompute: RecomputeRef | None = None
    activation_offload: ActivationOffloadRef | None = None
    fused_cross_entropy: bool | None = None
    attention: AttentionKind = ATTENTION
    expert_imbalance: Annotated[float, Field(ge=1, le=MOST_EXPERT_IMBALANCE)] = 1.0
    multi_token_prediction: Annotated[
        int,
        *whole(least=0, most=MOST_FURTHER_TOKENS),
        Field(
            description="How many layers predict tokens behind the next one (`--mtp-num-layers`): each is "
            "a layer of the model's last kind with norms and a matrix of its own, and multiplies by the head again. "
            "Absent: none, whatever the checkpoint has."
        ),
    ] = 0
    gradient_compression: GradientCompression = "none"
    kernels: Annotated[
        KernelKind | None,
        Field(
            description="How the model's operations are run: one by one, by hand-written kernels (Liger, Transformer "
            "Engine), by torch.compile, or by fms-acceleration's (foak). Absent: as the framework does."
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


class OverlapPart(Wire):
    """Whether the framework is told to hide traffic behind computation; absent: as it does, or the search chooses."""

    gradients: Annotated[bool | None, Field(description="Their reduction, behind the backward pass.")] = None
    parameters: Annotated[
        bool | None, Field(description="The gathering of updated parameters, behind the next forward pass.")
    ] = None
    tensor_parallel: Annotated[
        bool | None,
        Field(
            description="Tensor-parallel traffic, behind the products that it feeds and follows, by an option of the "
            "framework (`--tp-comm-overlap`, `enable_async_tensor_parallel`). What layers hide without it they hide in "
            "either case."
        ),
    ] = None
    expert_parallel: Annotated[
        bool | None,
        Field(description="The exchange of tokens with their experts, behind another micro-batch's computation."),
    ] = None


class LayoutPart(Wire):
    """The degrees that are fixed; absent ones are searched."""

    data_parallel: Degree | None = None
    tensor_parallel: Degree | None = None
    pipeline_parallel: Degree | None = None
    virtual_pipeline: Degree | None = None
    context_parallel: Degree | None = None
    context_all_to_all: Annotated[
        Degree | None,
        Field(
            description="How many of the ranks that divide a sequence exchange heads for tokens before attention, "
            "passing keys and values round a ring of the others: 1 for a ring alone (`--cp-comm-type p2p`), "
            "context_parallel for no ring (`a2a`), else both (`a2a+p2p`). Absent: searched.",
        ),
    ] = None
    expert_parallel: Degree | None = None
    sequence_parallel: bool | None = None
    zero_stage: Annotated[int, *whole(least=0, most=HIGHEST_ZERO_STAGE)] | None = None
    shard_group: Degree | None = None
    secondary_shard_group: Annotated[
        Degree | None,
        Field(
            description="Ranks that share a second copy of ZeRO stage 3's weights, from which all but a step's first "
            "pass gathers (ZeRO++, `zero_hpz_partition_size`); 1 for none."
        ),
    ] = None
    offload: Offload | None = None
    offload_target: OffloadTarget | None = None
    pipeline_schedule: Annotated[
        PipelineSchedule | None,
        Field(description="Absent: 1F1B, interleaved where there are virtual stages."),
    ] = None
    pipeline_layout: Annotated[
        str | None,
        Field(
            max_length=LONGEST_LIST,
            description=(
                "How a pipeline's blocks are divided among its stages: "
                f"{', '.join(NAMED)}, first=N,last=M (layers of the first and the last stage), "
                "first-less=N,last-less=M (how many layers fewer those have than the others), or a list of every "
                "virtual stage's blocks, such as `Et*7|(t*8|)*14t*7L`: E is the embedding, t a layer, m one for "
                "multi-token prediction, L head and loss, | begins the next stage, and *N repeats; or of its modules, "
                "as `module_fqns_per_model_part` has them. Absent: the fastest way the framework supports."
            ),
        ),
    ] = None
    overlap: OverlapPart | None = None

    def to_layout_request(self) -> LayoutRequest:
        """Return the planner's value of it."""
        degrees = {name: getattr(self, name) for name in LayoutPart.model_fields if name != "overlap"}
        overlap = None if self.overlap is None else Overlap(**self.overlap.model_dump())
        return LayoutRequest(**degrees, overlap=overlap)


class ComparedLayout(LayoutPart):
    """A layout to set beside the plan; what is absent is completed by the best search inside it.

    The degrees stand alone: those under `layout` do not hold for it. The other fields default to the request's own.
    """

    micro_batch_size: MicroBatch | None = None
    recompute: RecomputeRef | None = None
    activation_offload: ActivationOffloadRef | None = None
    fused_cross_entropy: bool | None = None
    framework: Framework | None = None

    def to_named_layout(self) -> NamedLayout:
        """Return the planner's value of it."""
        degrees = set(LayoutPart.model_fields)
        others = {**self.model_dump(exclude=degrees), **_offload(self.activation_offload)}
        others["recompute"] = _recompute(self.recompute)
        return NamedLayout(layout=self.to_layout_request(), **others)


def _rate_form(value: Any) -> str:
    return "(name)" if isinstance(value, str) else "(number)"


FailureRate: TypeAlias = Annotated[
    Annotated[float, Field(ge=0, lt=1), Tag("(number)")] | Annotated[Literal["pessimistic"], Tag("(name)")],
    Discriminator(_rate_form),
]


class ResiliencePart(Wire):
    """How often hardware fails, and what a restart costs."""

    gpu_failures_per_month: Annotated[
        FailureRate,
        Field(
            description=(
                "The part of the GPUs that fails in a month. The default is that of Llama 3's 16,384 GPUs, with 419 "
                "unexpected interruptions in 54 days (arXiv:2407.21783); 'pessimistic' is "
                f"{figure(PESSIMISTIC_GPU_FAILURES_PER_MONTH)}."
            )
        ),
    ] = GPU_FAILURES_PER_MONTH
    restart_seconds: Annotated[
        Seconds | None,
        Field(description="From a failure until processes run again; reading the checkpoint comes on top."),
    ] = None
    warm_up_seconds: Annotated[
        Seconds | None, Field(description="After a restart, until steps are as fast as before.")
    ] = None
    checkpoint_bytes_per_second: Rate | None = None
    target_availability: Annotated[
        float | None,
        Field(ge=0.5, le=0.999999, description="The part of the time for which enough nodes are to be up."),
    ] = None
    repair_seconds: Annotated[
        Seconds | None, Field(description="Until a failed node is back or replaced; needed for target_availability.")
    ] = None

    def to_resilience(self) -> Resilience:
        """Return the planner's value of it."""
        fields = self.model_dump()
        if self.gpu_failures_per_month == "pessimistic":
            fields["gpu_failures_per_month"] = PESSIMISTIC_GPU_FAILURES_PER_MONTH
        return Resilience(**fields)


class TrainRequest(Wire):
    """A training job: the model, the GPUs, and what is wanted of them."""

    model: ModelRef
    hardware: HardwareRequest
    training: TrainingPart = TrainingPart()
    layout: LayoutPart = LayoutPart()
    objective: TrainingObjective = "throughput"
    deadline_seconds: Seconds | None = None
    framework: Framework = "any"
    resilience: ResiliencePart = ResiliencePart()
    compare: Annotated[
        list[ComparedLayout],
        Field(
            max_length=MOST_COMPARED,
            default_factory=list,
            description="Layouts, partial or whole, to say of why they are not the plan: `comparisons` of the answer.",
        ),
    ]
    # The wire calls it `validate`, which is a method of every Pydantic model.
    validation: Annotated[Literal["none", "count", "trace", "device"], Field(alias="validate")] = "none"

    @model_validator(mode="before")
    @classmethod
    def _as_the_stack_does(cls, asked: Any) -> Any:
        """Return a request that says none with its stack's precision and attention, where it lacks the default."""
        training = asked.get("training", {}) if isinstance(asked, dict) else None
        if not isinstance(training, dict):
            return asked
        framework = str(asked.get("framework"))
        usual = {"precision": usual_precision(framework), "attention": _usual_attention(framework, asked)}
        own = {name: value for name, value in usual.items() if value not in (PRECISION, ATTENTION)}
        return {**asked, "training": {**own, **training}} if own else asked

    def default_notes(self) -> tuple[str, ...]:
        """Return a sentence for each quantity that is as it would be if the request did not say."""
        training = self.training
        notes = (
            ("sequence_length", training.sequence_length, SEQUENCE_LENGTH, "tokens"),
            ("global_batch_size", training.global_batch_size, GLOBAL_BATCH_SIZE, "sequences per step"),
        )
        return (
            tuple(
                f"training.{name} is {value:,} {unit}, the default."
                for name, value, default, unit in notes
                if value == default
            )
            + self._precision_note()
        )

    def _precision_note(self) -> tuple[str, ...]:
        usual = usual_precision(self.framework)
        if usual == PRECISION or self.training.precision != usual:
            return ()
        return (f"training.precision is {usual}, the default of {self.framework}, which has no {PRECISION}.",)

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
        if self.resilience.repair_seconds is not None and self.resilience.target_availability is None:
            raise InvalidQuestion(
                "repair_seconds serves to find spare nodes. Say target_availability, or leave it away.",
                pointer="/resilience/repair_seconds",
            )

    def to_question(self, model: ModelSpec, hardware: Hardware) -> TrainingQuestion:
        """Return the planner's question; raises InvalidQuestion for what nothing asked for would read."""
        self.refuse_what_nothing_reads()
        return TrainingQuestion(
            model=model,
            hardware=hardware,
            **training_fields(self.training),
            layout=self.layout.to_layout_request(),
            objective=self.objective,
            deadline_seconds=self.deadline_seconds,
            framework=self.framework,
            resilience=self.resilience.to_resilience(),
            compare=tuple(each.to_named_layout() for each in self.compare),
        )


def _usual_attention(framework: str, asked: Mapping[str, Any]) -> str:
    """Return the attention of a job that names none: flash, or what its stack has on a card of the catalogue."""
    hardware = asked.get("hardware")
    name = hardware.get("gpu") if isinstance(hardware, dict) else None
    if framework not in stack_names() or not isinstance(name, str):
        return ATTENTION
    try:
        kinds = attention_kinds(load_profile(framework), catalogue().gpu(name))
    except UnknownName:
        return ATTENTION
    return ATTENTION if ATTENTION in kinds else next(iter(kinds), ATTENTION)


def training_fields(asked: TrainingPart) -> dict[str, Any]:
    """Return the fields of a planner's question that the job itself decides."""
    same = asked.model_dump(exclude={"lora", "recompute", "evaluation", "companions"})
    return {
        **same,
        "recompute": _recompute(asked.recompute),
        **_offload(asked.activation_offload),
        "lora": _lora(asked.lora),
        "evaluation": None if asked.evaluation is None else Evaluation(**asked.evaluation.model_dump()),
        "companions": tuple(_companion(place, companion) for place, companion in enumerate(asked.companions)),
    }


def _companion(place: int, asked: CompanionPart) -> Companion:
    model = None
    if asked.model is not None:
        found = catalogue().model(asked.model, pointer=f"/training/companions/{place}/model")
        model = describe_config(found.config, name=found.id)
    return Companion(**{**asked.model_dump(), "model": model})


def _recompute(asked: RecomputeMode | FullLayers | EveryLayer | RecomputedModules | None) -> Recompute | None:
    if asked is None:
        return None
    if isinstance(asked, str):
        return Recompute(mode=asked)
    if isinstance(asked, RecomputedModules):
        return Recompute(mode="selective", modules=tuple(dict.fromkeys(asked.modules)))
    return Recompute(mode="full", **asked.model_dump())


def _offload(asked: bool | OffloadedLayers | OffloadedModules | None) -> dict[str, Any]:
    if isinstance(asked, OffloadedLayers):
        return {"activation_offload": True, "offload_layers": asked.layers}
    if isinstance(asked, OffloadedModules):
        return {"activation_offload": True, "offload_modules": tuple(dict.fromkeys(asked.modules))}
    return {"activation_offload": asked}


def _lora(asked: LoraPart | None) -> Lora:
    if asked is None:
        return Lora()
    targets = asked.target_modules
    return Lora(**{**asked.model_dump(), "target_modules": (targets,) if isinstance(targets, str) else targets})
