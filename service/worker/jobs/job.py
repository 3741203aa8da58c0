"""One rank's training step to prove: model, batch, precision and layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from plimsoll.planners.architecture.multi_token import with_multi_token_prediction
from plimsoll.planners.families import describe_config, traits
from plimsoll.planners.families.family import Tracing
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.ground.terms import (
    ONE_FORWARD_ONE_BACKWARD,
)
from plimsoll.planners.jobs.pipeline_layouts import pipeline_layouts
from plimsoll.planners.layouts.experts import experts_are_cut
from plimsoll.planners.layouts.stages import Pipeline, distinct_stages
from plimsoll.planners.plans import HiddenTraffic
from plimsoll.planners.questions import Evaluation, Lora
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.service.worker.jobs.config_keys import number_of_layers

FP8_MIXED = "fp8-mixed"
MIXED_PRECISIONS = ("bf16-mixed", "fp16-mixed", FP8_MIXED)
# Offload as the planner calls it; FSDP2's CPUOffloadPolicy is that of every state, gradients among them.
EVERY_STATE = "optimizer+parameters"
# Megatron-LM's names of parts of a dense layer (planners/jobs/recompute_modules.py).
LAYER_NORM, FEED_FORWARD = "layernorm", "mlp"


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
    into copies of `shard_group` ranks; `secondary_shard_group` ranks share a second copy, one where there is none.
    `offload` says which states wait on the host, or on `offload_target`.
    `gradient_dtype` is the format in which gradients are added up, None the stack's own. `reference` is that of a
    frozen model like the own one, with which this one is compared, None where there is none. `evaluation` follows every
    step that is traced. `multi_token_prediction` counts the layers that predict tokens behind the next one.
    `overlap` is which traffic the plan hides behind computation, None in plans of versions that did not say;
    `asks_tensor_overlap` marks a request for tensor-parallel traffic to be hidden, by a stack's own option.
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
    context_all_to_all: int = 1
    expert_parallel: int = 1
    activation_offload: bool = False
    offload_modules: tuple[str, ...] = ()
    offload_layers: int | None = None
    secondary_shard_group: int = 1
    offload: str = "none"
    offload_target: str = "cpu"
    gradient_dtype: str | None = None
    pipeline_schedule: str = ONE_FORWARD_ONE_BACKWARD
    pipeline_layout: str | None = None
    recompute_every: int | None = None
    recompute_modules: tuple[str, ...] = ()
    kernels: str | None = None
    multi_token_prediction: int = 0
    stages: tuple[PipelineStage, ...] = ()
    method: str = "full"
    lora: Lora = field(default_factory=Lora)
    reference: str | None = None
    evaluation: Evaluation | None = None
    overlap: HiddenTraffic | None = None
    asks_tensor_overlap: bool = False

    @property
    def states_on_host(self) -> bool:
        """Return whether states wait elsewhere than on the device."""
        return self.offload != "none"

    @property
    def pairs_passes(self) -> bool:
        """Return whether one micro-batch's forward pass runs beside another's backward pass."""
        return self.overlap is not None and self.overlap.expert_parallel

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
        distinct = distinct_stages(self.pipeline)
        heaviest = max(self.stages, key=lambda stage: stage.planned_bytes).number
        return tuple(self.stages[number] for number in sorted({*distinct, heaviest}))

    def chunks_of(self, stage: PipelineStage) -> tuple[PipelineStage, ...]:
        """Return the parts of the model that a stage's rank has, in their order: one, if not interleaved."""
        if self.virtual_pipeline == 1:
            return (stage,)
        chunks = self.pipeline.held(stage.number)
        return tuple(
            replace(stage, first_layer=layers.start, last_layer=layers.stop - 1, chunk=chunk, chunks=len(chunks))
            for chunk, layers in enumerate(chunks)
        )

    @property
    def pipeline(self) -> Pipeline:
        """Return the pipeline with the model's blocks divided as the plan has them."""
        model = describe_config(self.config, name=self.model_name)
        if self.multi_token_prediction:
            model = with_multi_token_prediction(ByIdentity(model), self.multi_token_prediction)
        forms = load_profile(self.framework).can.pipeline_layouts
        way = pipeline_layouts(self.pipeline_layout, forms, model)[0]
        return Pipeline(ByIdentity(model), self.pipeline_parallel, self.virtual_pipeline, way)

    @property
    def world_size(self) -> int:
        """Return the number of ranks of the whole job."""
        return self.data_parallel * self.context_parallel * self.tensor_parallel * self.pipeline_parallel

    @property
    def has_experts(self) -> bool:
        """Return whether the model's feed-forwards are mixtures, which those of some families are in some models."""
        if not traits(self.config["model_type"]).has_experts:
            return False
        return describe_config(self.config, name=self.model_name).experts_per_token > 0

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
