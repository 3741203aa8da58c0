"""A training job without a layout: what of the question decides memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from plimsoll.planners.architecture import Block, ModelSpec, Part, Split, Weight
from plimsoll.planners.architecture.multi_token import with_multi_token_prediction
from plimsoll.planners.formats.precision import FP32_BYTES, Precision, dtype_bytes, training_precision
from plimsoll.planners.ground.errors import InvalidQuestion, NotYetAvailable
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.ground.terms import COMPANION_ROLES, CPU, ONE_FORWARD_ONE_BACKWARD
from plimsoll.planners.jobs.abilities import why_unsupported
from plimsoll.planners.jobs.adapter_dropout import with_adapter_dropout
from plimsoll.planners.jobs.adapters import adapter_weights, learning_operations, shared_head
from plimsoll.planners.jobs.offload_modules import modules_worth_sending
from plimsoll.planners.jobs.optimizers import OptimizerKind, of_matrices_alone, optimizer_kind, updated_by
from plimsoll.planners.jobs.overlap import JobOverlap, job_overlap
from plimsoll.planners.jobs.pipeline_layouts import PipelineLayout, pipeline_layouts
from plimsoll.planners.jobs.recompute_modules import sets_worth_trying
from plimsoll.planners.questions import Companion, Evaluation, Lora, TrainingQuestion
from plimsoll.planners.stacks.profile import Profile, running_profile
from plimsoll.planners.stacks.records import BY_MODULES, Fp8Storage, StateBytes

# Blocks whose weights are kept apart between questions: a few kinds of layers of some hundred models.
MOST_KEPT_BLOCKS = 1024
# Models that were given a head of their own.
MOST_KEPT_MODELS = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockWeights:
    """The weights of a block, apart into those that learn and those that only stand by.

    `learning` names the matrix products with a weight or an adapter that learns;
    None means all of them. There is one of each, however often it is asked for, and it is compared by identity: sums
    over it are kept cheaply, from one question to the next.
    """

    block: Block
    trainable: tuple[Weight, ...]
    frozen: tuple[Weight, ...]
    learning: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompanionJob:
    """A model beside the job's own: `job` is it as a job of its own, `weight_bytes` the width of frozen weights."""

    role: str
    trainable: bool
    weight_bytes: int
    job: Job


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """Everything but the layout, seen through one framework's profile; compared by identity.

    `limit_bytes` is what one device offers; the host is that of the `gpus_per_node` devices of a node.
    `pipeline_layouts` are the ways in which pipelines may be divided, `module_sets` what selective recomputation may
    name: first `recompute_modules`, which was asked for, then sets that the search may choose. Layouts have both by
    their places.
    """

    model: ModelSpec
    profile: Profile
    precision: Precision
    states: StateBytes
    optimizer: OptimizerKind
    method: str
    lora: Lora
    attention: str
    recompute_every: int | None
    module_sets: tuple[tuple[str, ...], ...]
    asked_offload_modules: tuple[str, ...]
    offload_layers: int | None
    expert_imbalance: float
    gradient_compression: str
    sequence_length: int
    global_batch_size: int
    limit_bytes: int
    gpus_per_node: int
    offload_target: str
    pipeline_schedule: str
    pipeline_layouts: tuple[PipelineLayout, ...]
    overlap: JobOverlap
    kernels: str | None
    evaluation: Evaluation | None
    companions: tuple[CompanionJob, ...]
    embedding: BlockWeights
    layers: tuple[BlockWeights, ...]
    head: BlockWeights
    multi_token: BlockWeights | None

    @property
    def recompute_modules(self) -> tuple[str, ...]:
        """Return the modules that were asked for; none where that was left open, or what the stack does."""
        return self.module_sets[0]

    @property
    def parts(self) -> tuple[BlockWeights, ...]:
        """Return embedding, layers, what joins those for multi-token prediction, and head in order."""
        return (self.embedding, *self.layers, *([self.multi_token] if self.multi_token else ()), self.head)

    def offload_modules(self, module_set: int) -> tuple[str, ...]:
        """Return the parts of layers that send what they keep to the host where activations are offloaded.

        They are those that were asked for, or those worth it beside a set of recomputed modules; none where a stack
        sends all it keeps, or its first `offload_layers` do.
        """
        is_by_parts = self.profile.can.activation_offload == BY_MODULES and self.offload_layers is None
        if self.asked_offload_modules or not is_by_parts:
            return self.asked_offload_modules
        return modules_worth_sending(ByIdentity(self.model), self.module_sets[module_set])

    @property
    def host_gradient_bytes(self) -> int:
        """Return the width of the gradients that wait on the host for an update there."""
        has_fp32_copy = self.profile.host.fp32_gradients and self.states.master
        return FP32_BYTES if has_fp32_copy else self.states.accumulator

    @property
    def reduce_bytes(self) -> int:
        """Return the width in which gradients are reduced: the stack's own, or that in which they are kept."""
        weights = self.profile.weights
        is_own = self.precision.is_mixed or weights.reduces_alike
        return weights.reduce_bytes if weights.reduce_bytes and is_own else self.states.gradient

    @property
    def frozen_bytes(self) -> int:
        """Return the width of weights that do not learn, where they are not packed in four bits."""
        if self.lora.base_dtype is not None:
            return dtype_bytes(self.lora.base_dtype, pointer="/training/lora/base_dtype")
        is_fp32 = self.precision.is_mixed and self.profile.frozen_base.is_fp32
        return FP32_BYTES if is_fp32 else self.precision.compute_bytes

    @property
    def fp8(self) -> Fp8Storage | None:
        """Return what products in fp8 keep, None where they are not in fp8 or keep 16 bits."""
        return self.profile.fp8 if self.precision.compute_format == "fp8" else None

    @property
    def casts_products(self) -> bool:
        """Return whether products keep 16 bits and cast them to fp8 as they multiply, as torchao's do."""
        return self.precision.compute_format == "fp8" and self.profile.fp8 is None

    @property
    def trainable_parameters(self) -> int:
        """Return the number of parameters that the optimizer changes."""
        return sum(weight.elements * part.block.repeats for part in self.parts for weight in part.trainable)


def _module_sets(question: TrainingQuestion, profile: Profile, model: ModelSpec) -> tuple[tuple[str, ...], ...]:
    """Return the modules that are asked for or, where recomputation is left open, none and all sets worth trying."""
    if question.recompute is not None:
        return (question.recompute.modules,)
    if "modules" not in profile.can.recompute:
        return ((),)
    tried = sets_worth_trying(
        ByIdentity(model),
        keeps_scores=question.attention == "eager",
        fuses_norms=profile.kernels.transformer_engine,
    )
    return ((), *tried)


def training_job(question: TrainingQuestion, profile: Profile) -> Job:
    """Return the job as `profile` would run it; raise what `why_unsupported` says."""
    precision = training_precision(question.precision)
    optimizer = optimizer_kind(question.optimizer)
    if profile.updates_matrices_alone:
        optimizer = of_matrices_alone(optimizer)
    problem = why_unsupported(question, profile)
    if problem is not None:
        raise problem
    profile = running_profile(profile, question.kernels, question.optimizer)
    profile = with_adapter_dropout(profile, question.lora, question.method, precision.compute_bytes)
    optimizer = updated_by(optimizer, profile.update)
    model = _with_own_head(ByIdentity(question.model)) if profile.unties_head else question.model
    if question.multi_token_prediction:
        model = with_multi_token_prediction(ByIdentity(model), question.multi_token_prediction)
    module_sets = _module_sets(question, profile, model)
    return Job(
        model=model,
        profile=profile,
        precision=precision,
        states=_states(question, profile),
        optimizer=optimizer,
        method=question.method,
        lora=question.lora,
        attention=question.attention,
        recompute_every=question.recompute.every if question.recompute else None,
        module_sets=module_sets,
        asked_offload_modules=question.offload_modules,
        offload_layers=question.offload_layers,
        expert_imbalance=question.expert_imbalance,
        gradient_compression=question.gradient_compression,
        sequence_length=question.sequence_length,
        global_batch_size=question.global_batch_size,
        limit_bytes=question.hardware.limit_bytes,
        gpus_per_node=question.hardware.gpus_per_node,
        offload_target=question.layout.offload_target or CPU,
        pipeline_schedule=question.layout.pipeline_schedule or ONE_FORWARD_ONE_BACKWARD,
        pipeline_layouts=pipeline_layouts(question.layout.pipeline_layout, profile.can.pipeline_layouts, model),
        overlap=job_overlap(question.layout.overlap, profile.overlap),
        kernels=question.kernels,
        evaluation=question.evaluation,
        companions=tuple(_companion(companion, question, profile, module_sets) for companion in question.companions),
        embedding=_apart(model.embedding, question),
        layers=tuple(_apart(block, question) for block in model.layers),
        head=_apart(model.head, question, shared_head(model)),
        multi_token=None if model.multi_token is None else _apart(model.multi_token, question),
    )


def _companion(
    companion: Companion, question: TrainingQuestion, profile: Profile, module_sets: tuple[tuple[str, ...], ...]
) -> CompanionJob:
    """Return a companion as a job of its own; raise for what is not planned of it.

    It recomputes the same of the policy's sets of modules as the policy does: a trainer has one setting for both. A
    module that it lacks takes nothing.
    """
    if companion.offload:
        raise NotYetAvailable("a companion with offload is not planned yet.", pointer="/training/companions")
    if companion.trainable and companion.role != "value":
        raise InvalidQuestion(
            f"A {companion.role[:40]} model beside the policy is frozen; only a value model learns with it.",
            pointer="/training/companions",
        )
    if companion.role not in COMPANION_ROLES:
        raise InvalidQuestion(
            f"{companion.role[:40]!r} is not one of {', '.join(COMPANION_ROLES)}.", pointer="/training/companions"
        )
    own = replace(
        question,
        model=companion.model or question.model,
        method="full",
        kernels=None,
        evaluation=None,
        companions=(),
        multi_token_prediction=0,
    )
    size = dtype_bytes(companion.precision, pointer="/training/companions")
    job = training_job(own, profile)
    return CompanionJob(
        role=companion.role,
        trainable=companion.trainable,
        weight_bytes=size,
        job=replace(job, module_sets=module_sets),
    )


def _states(question: TrainingQuestion, profile: Profile) -> StateBytes:
    """Return the profile's bytes with the question's own dtypes in their place.

    A gradient dtype names the gradients that are accumulated: the wider copy
    where the stack has one.
    """
    states = profile.states[question.precision]
    if question.gradient_dtype is not None:
        size = dtype_bytes(question.gradient_dtype, pointer="/training/gradient_dtype")
        has_wider = states.accumulator or (profile.sums_wider_gradients_apart and size > states.gradient)
        states = replace(states, accumulator=size) if has_wider else replace(states, gradient=size)
    if question.optimizer_state_dtype is not None:
        size = dtype_bytes(question.optimizer_state_dtype, pointer="/training/optimizer_state_dtype")
        states = replace(states, moment=size)
    return states


@functools.lru_cache(maxsize=MOST_KEPT_MODELS)
def _with_own_head(same: ByIdentity[ModelSpec]) -> ModelSpec:
    """Return the model with a head matrix beside the embedding that it shares in the checkpoint."""
    model = same.value
    if not model.tied_head:
        return model
    shared = next(weight for weight in model.embedding.weights if weight.split is Split.VOCABULARY)
    own = replace(shared, name="lm_head.weight", part=Part.HEAD, is_linear=True)
    return replace(model, head=replace(model.head, weights=(*model.head.weights, own)), tied_head=False)


def _apart(block: Block, question: TrainingQuestion, shared: tuple[Weight, ...] = ()) -> BlockWeights:
    return _block_weights(ByIdentity(block), question.method == "full", question.lora, shared)


@functools.lru_cache(maxsize=MOST_KEPT_BLOCKS)
def _block_weights(same: ByIdentity[Block], all_learn: bool, lora: Lora, shared: tuple[Weight, ...]) -> BlockWeights:
    """Return a block's weights apart; `shared` is a matrix that it multiplies by and another block holds."""
    block = same.value
    if all_learn:
        return BlockWeights(block=block, trainable=block.weights, frozen=())
    multiplied = (*block.weights, *shared)
    return BlockWeights(
        block=block,
        trainable=adapter_weights(multiplied, lora),
        frozen=block.weights,
        learning=learning_operations(block, multiplied, lora),
    )
