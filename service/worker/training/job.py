"""The job to trace, read from a stored plan and the request it answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from plimsoll.planners.families import describe_config, model_types_with, traits
from plimsoll.planners.families.family import Tracing
from plimsoll.planners.ground.errors import InvalidQuestion, NotYetAvailable
from plimsoll.planners.ground.terms import (
    ATTENTION_KINDS,
    GPIPE,
    METHODS,
    ONE_FORWARD_ONE_BACKWARD,
    RECOMPUTE_MODES,
    ZERO_STAGES,
)
from plimsoll.planners.jobs.recompute_modules import CORE_ATTENTION
from plimsoll.planners.layouts.experts import experts_are_cut
from plimsoll.planners.layouts.stages import distinct_stages, held_chunks
from plimsoll.planners.questions import Lora
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.service.worker.training.config_keys import number_of_layers

TRACED_PRECISIONS = ("fp32", "tf32", "fp16-mixed", "bf16-mixed", "fp8-mixed", "bf16")
# FSDP2's CPUOffloadPolicy, as the planner calls it: parameters, gradients and the optimizer's states.
EVERY_STATE = "optimizer+parameters"
TRACED_OPTIMIZERS = (
    "adamw", "adamw-8bit", "paged-adamw", "paged-adamw-8bit", "sgd", "sgd-momentum", "lion", "adafactor", "muon",
)  # fmt: skip
# Those that tell matrices from vectors, and so need parameters whole and in their shapes.
SHAPED_OPTIMIZERS = ("adafactor", "muon")
TRACED_KERNELS = (None, "eager", "fused")
# torch's schedules; PipeDream, which updates after every micro-batch, no stack of these has.
TRACED_SCHEDULES = (ONE_FORWARD_ONE_BACKWARD, GPIPE)
# Megatron-LM's names of parts of a dense layer (planners/jobs/recompute_modules.py).
LAYER_NORM, FEED_FORWARD = "layernorm", "mlp"
TRACED_RECOMPUTE_MODULES = (CORE_ATTENTION, LAYER_NORM, FEED_FORWARD)
# What of a training request is read here or, as a choice of the planner's, from the plan's layout. A part
# that is not among them changes the job in a way that no trace knows of.
READ_TRAINING_PARTS = frozenset(
    {
        "method", "lora", "precision", "optimizer", "sequence_length", "global_batch_size", "tokens", "gradient_dtype",
        "optimizer_state_dtype", "micro_batch_size", "recompute", "activation_offload", "fused_cross_entropy",
        "attention", "kernels", "expert_imbalance", "gradient_compression", "evaluation", "companions",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStage:
    """A stage of a pipeline of `stages`: its number and its layers, the last one included.

    An interleaved schedule gives every rank several, its `chunks`, of which this is one. `planned_bytes` is the stage's
    peak as the plan has it.
    """

    number: int
    stages: int
    first_layer: int
    last_layer: int
    chunk: int = 0
    chunks: int = 1
    planned_bytes: int = 0

    @property
    def is_first(self) -> bool:
        """Return whether the embedding is here."""
        return self.number == 0 and self.chunk == 0

    @property
    def is_last(self) -> bool:
        """Return whether the head is here."""
        return self.number == self.stages - 1 and self.chunk == self.chunks - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One rank's training step: model, batch, precision and layout.

    `config` is the model's `config.json`. `recompute_layers` limits full
    recomputation to that many layers of a stage, `recompute_every` to every so-manieth;
    `recompute_modules` are the parts of each layer that selective recomputation
    computes again, none meaning what the stack does. `data_parallel` ranks are grouped
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
    virtual_pipeline: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1
    activation_offload: bool = False
    states_on_host: bool = False
    pipeline_schedule: str = ONE_FORWARD_ONE_BACKWARD
    recompute_every: int | None = None
    recompute_modules: tuple[str, ...] = ()
    kernels: str | None = None
    stages: tuple[PipelineStage, ...] = ()
    method: str = "full"
    lora: Lora = field(default_factory=Lora)

    @property
    def trains_adapters(self) -> bool:
        """Return whether the model is frozen and only adapters learn."""
        return self.method != "full"

    @property
    def deciding_stages(self) -> tuple[PipelineStage, ...]:
        """Return the stages that can need the most: one of each that the planner tells apart, and its heaviest.

        Of equal stages that is the first, which keeps the most micro-batches. Without a pipeline there is one stage,
        which has all layers.
        """
        if self.pipeline_parallel == 1:
            last_layer = number_of_layers(self.config) - 1
            return (PipelineStage(number=0, stages=1, first_layer=0, last_layer=last_layer),)
        model, rule = describe_config(self.config, name=self.model_name), load_profile(self.framework).can.stage_rule
        distinct = distinct_stages(model, self.pipeline_parallel, self.virtual_pipeline, rule=rule)
        heaviest = max(self.stages, key=lambda stage: stage.planned_bytes).number
        return tuple(self.stages[number] for number in sorted({*distinct, heaviest}))

    def chunks_of(self, stage: PipelineStage) -> tuple[PipelineStage, ...]:
        """Return the parts of the model that a stage's rank has, in their order: one, if not interleaved."""
        if self.virtual_pipeline == 1:
            return (stage,)
        model, rule = describe_config(self.config, name=self.model_name), load_profile(self.framework).can.stage_rule
        chunks = held_chunks(model, stage.number, stage.stages, self.virtual_pipeline, rule=rule)
        return tuple(
            replace(stage, first_layer=layers.start, last_layer=layers.stop - 1, chunk=chunk, chunks=len(chunks))
            for chunk, layers in enumerate(chunks)
        )

    @property
    def world_size(self) -> int:
        """Return the number of ranks of the whole job."""
        return self.data_parallel * self.context_parallel * self.tensor_parallel * self.pipeline_parallel

    @property
    def has_experts(self) -> bool:
        """Return whether the model's feed-forwards are mixtures."""
        return traits(self.config["model_type"]).has_experts

    @property
    def tracing(self) -> Tracing:
        """Return how the model's family is traced; one that is not is refused as the job is read."""
        return traits(self.config["model_type"]).tracing or Tracing()

    @property
    def expert_tensor_parallel(self) -> int:
        """Return over how many tensor-parallel ranks each expert is cut: all of them, or one."""
        replicas = np.asarray(self.data_parallel * self.context_parallel)
        are_cut = experts_are_cut(load_profile(self.framework), replicas, np.asarray(self.expert_parallel))
        return self.tensor_parallel if are_cut else 1

    @property
    def expert_copies(self) -> int:
        """Return how many ranks of a stage hold the same part of the same experts."""
        ranks = self.data_parallel * self.context_parallel * self.tensor_parallel
        return ranks // (self.expert_parallel * self.expert_tensor_parallel)

    @property
    def experts_per_token(self) -> int:
        """Return how many experts work on each token of a mixture."""
        return int(self.config["num_experts_per_tok"])

    @property
    def shard_ranks(self) -> int:
        """Return over how many ranks a parameter is sharded: those with other parts of a sequence are among them."""
        return self.shard_group * self.context_parallel

    @property
    def local_sequence_length(self) -> int:
        """Return the tokens that a rank has of each sequence, before sequence parallelism."""
        return self.sequence_length // self.context_parallel

    @property
    def micro_batch_tokens(self) -> int:
        """Return the tokens that a rank has of one micro-batch."""
        return self.micro_batch_size * self.local_sequence_length

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
            virtual_pipeline=layout.get("virtual_pipeline", 1),
            context_parallel=layout.get("context_parallel", 1),
            expert_parallel=layout.get("expert_parallel", 1),
            states_on_host=layout.get("offload", "none") == EVERY_STATE,
            pipeline_schedule=layout.get("pipeline_schedule", ONE_FORWARD_ONE_BACKWARD),
            activation_offload=bool(layout.get("activation_offload", False)),
            **_recompute_parts(training.get("recompute")),
            stages=_stages(request["plan"]["memory"], layout["pipeline_parallel"]),
            method=training.get("method", "full"),
            lora=_lora(training.get("lora")),
        )
    except KeyError as missing:
        raise InvalidQuestion(f"The plan to validate lacks {missing}.") from missing
    _refuse_what_is_not_traced(training, layout)
    _refuse_job(job)
    return job


def _stages(memory: Mapping[str, Any], pipeline_parallel: int) -> tuple[PipelineStage, ...]:
    """Return the stages as the plan cut them; a plan without a pipeline needs none."""
    if pipeline_parallel == 1:
        return ()
    return tuple(
        PipelineStage(
            number=part["stage"],
            stages=pipeline_parallel,
            first_layer=part["layers"][0],
            last_layer=part["layers"][1],
            planned_bytes=int(part["peak_bytes"]),
        )
        for part in memory["stages"]
    )


def _recompute_parts(asked: Any) -> dict[str, Any]:
    """Return which layers or parts of layers a request names; a mode's name alone names none."""
    if not isinstance(asked, dict):
        return {}
    return {"recompute_every": asked.get("every"), "recompute_modules": tuple(asked.get("modules", ()))}


def _lora(part: Mapping[str, Any] | None) -> Lora:
    if part is None:
        return Lora()
    for name in ("modules_to_save", "base_dtype"):
        if part.get(name):
            raise NotYetAvailable(f"Adapters with {name} are not traced yet.", pointer=f"/training/lora/{name}")
    targets = part["target_modules"]
    return Lora(
        rank=part["rank"],
        target_modules=(targets,) if isinstance(targets, str) else tuple(targets),
        double_quantization=part["double_quantization"],
    )


def _refuse_what_is_not_traced(training: Mapping[str, Any], layout: Mapping[str, Any]) -> None:
    for name, value in training.items():
        if name not in READ_TRAINING_PARTS and value is not None:
            raise NotYetAvailable(f"A job with {name!r} is not traced yet.", pointer=f"/training/{name}")
    if layout.get("offload", "none") not in ("none", EVERY_STATE):
        raise NotYetAvailable(
            f"Offload of {layout['offload']} alone is not traced: FSDP2's policy moves every state.",
            pointer="/layout/offload",
        )
    if training.get("expert_imbalance", 1.0) != 1.0:
        raise NotYetAvailable("expert_imbalance is not traced yet.", pointer="/training/expert_imbalance")
    if training.get("gradient_compression", "none") != "none":
        raise NotYetAvailable("compressed gradients are not traced yet.", pointer="/training/gradient_compression")
    for name in ("gradient_dtype", "optimizer_state_dtype", "evaluation", "companions"):
        if training.get(name):
            raise NotYetAvailable(f"{name} is not traced yet.", pointer=f"/training/{name}")


def _refuse_family(model_type: Any) -> None:
    """Raise `NotYetAvailable`, with the reason where one is known, for a family that is not traced."""
    family = traits(model_type)
    if family.tracing is None:
        reason = f": {family.untraced}" if family.untraced else ""
        traced = model_types_with(lambda other: other.tracing is not None)
        raise NotYetAvailable(
            f"{model_type!r} is not traced yet{reason}; traced are {', '.join(traced)}.",
            pointer="/model/config/model_type",
        )


def _refuse_job(job: TraceJob) -> None:
    _refuse_family(job.config.get("model_type"))
    for pointer, value, known in (
        ("/training/method", job.method, METHODS),
        ("/training/precision", job.precision, TRACED_PRECISIONS),
        ("/training/optimizer", job.optimizer, TRACED_OPTIMIZERS),
        ("/training/attention", job.attention, ATTENTION_KINDS),
        ("/training/kernels", job.kernels, TRACED_KERNELS),
        ("/layout/recompute", job.recompute, RECOMPUTE_MODES),
        ("/layout/pipeline_schedule", job.pipeline_schedule, TRACED_SCHEDULES),
        ("/layout/zero_stage", job.zero_stage, ZERO_STAGES),
    ):
        if value not in known:
            raise NotYetAvailable(f"{value!r} is not traced yet; traced are {known}.", pointer=pointer)
    if job.pipeline_schedule == GPIPE and job.virtual_pipeline > 1:
        raise NotYetAvailable("GPipe is traced with one chunk a rank.", pointer="/layout/virtual_pipeline")
    for module in job.recompute_modules:
        if module not in TRACED_RECOMPUTE_MODULES:
            raise NotYetAvailable(
                f"Recomputing {module!r} is not traced yet; traced are {TRACED_RECOMPUTE_MODULES}.",
                pointer="/training/recompute/modules",
            )
    if job.pipeline_parallel > 1 and job.config.get("tie_word_embeddings"):
        raise NotYetAvailable(
            "A pipeline with a head tied to the embedding is not traced yet.",
            pointer="/layout/pipeline_parallel",
        )
    tensor_parallel = job.tensor_parallel
    for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        length = job.config.get(key) or job.config.get("num_attention_heads", tensor_parallel)
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
