"""Which layouts can exist: one function a rule, each with its reason and the field at fault.

A rule returns a mask that broadcasts against the `Candidates`, true where the
layout obeys it, and varies only along the axes the rule reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.jobs.job import ONE_FORWARD_ONE_BACKWARD, Job
from plimsoll.planners.layouts.candidates import (
    ALL_LAYERS,
    FULL,
    OFFLOAD_TARGETS,
    RECOMPUTE_MODES,
    BoolArray,
    Candidates,
)
from plimsoll.planners.layouts.distinct import distinct
from plimsoll.planners.layouts.experts import expert_counts, ranks_form_groups
from plimsoll.planners.layouts.grid import counted
from plimsoll.planners.layouts.stages import compute_weighted_stages
from plimsoll.planners.memory.holdings import in_zero_stages, shard_ranks
from plimsoll.planners.memory.recurrent import block_scan
from plimsoll.planners.memory.shards import WHOLE, are_divisible, divisions, has_equal_parts, tensor_divisions


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One reason why a layout cannot exist; `field` is the degree a client would change."""

    name: str
    field: str
    reason: str
    obeyed: Callable[[Candidates, Job], BoolArray]


def heads_divide(layouts: Candidates, job: Job) -> BoolArray:
    """Return where every rank gets whole attention heads and whole key-value heads."""
    tensor = layouts.tensor_parallel
    obeyed: BoolArray = (job.model.attention_heads % tensor == 0) & (job.model.key_value_heads % tensor == 0)
    return obeyed


def matrices_divide(layouts: Candidates, job: Job) -> BoolArray:
    """Return where the stack cuts matrices into equal parts, the vocabulary's rows apart."""
    by = tensor_divisions(layouts, job)
    obeyed = np.ones(1, dtype=bool)
    for part in job.parts:
        obeyed = obeyed & has_equal_parts(part, by)
    return obeyed


def stages_have_layers(layouts: Candidates, job: Job) -> BoolArray:
    """Return where every chunk of every pipeline stage has a layer."""
    return layouts.pipeline_parallel * layouts.virtual_pipeline <= job.model.num_layers


def stages_have_blocks(layouts: Candidates, job: Job) -> BoolArray:
    """Return where every stage is dealt a block, which stacks that deal by compute do not see to.

    Of the Ultra-Scale Playbook's 100 runs with a stage left empty none ran; deeper
    pipelines than layers are among them.
    """
    if job.profile.can.stage_rule != "by_compute":
        return np.ones(1, dtype=bool)
    degrees, place = distinct(layouts.pipeline_parallel)
    full = np.array([compute_weighted_stages(job.model, degree).reached == degree for degree in degrees.tolist()])
    obeyed: BoolArray = full[place]
    return obeyed


def stages_are_even(layouts: Candidates, job: Job) -> BoolArray:
    """Return where layers divide evenly, which some stacks and every interleaved schedule need."""
    chunks = layouts.pipeline_parallel * layouts.virtual_pipeline
    needs = (layouts.virtual_pipeline > 1) | job.profile.can.even_stages
    obeyed: BoolArray = ~needs | (job.model.num_layers % chunks == 0)
    return obeyed


def recomputed_layers_divide(layouts: Candidates, job: Job) -> BoolArray:  # noqa: ARG001
    """Return where recomputed layers are as many in every virtual stage of a stage.

    Source: Megatron-LM, training/arguments.py: --recompute-num-layers counts the layers of each virtual stage.
    """
    is_some = (layouts.recompute == FULL) & (layouts.full_layers != ALL_LAYERS)
    obeyed: BoolArray = ~is_some | (layouts.full_layers % layouts.virtual_pipeline == 0)
    return obeyed


def interleaving_needs_pipeline(layouts: Candidates, job: Job) -> BoolArray:
    """Return where virtual stages stand on a pipeline whose micro-batches come in whole rounds.

    Source: Narayanan et al. 2021, section 2.2: micro-batches must be a multiple of the stages.
    """
    rounds = layouts.micro_batches(job.global_batch_size) % layouts.pipeline_parallel == 0
    is_interleaved = np.bool_(job.pipeline_schedule == ONE_FORWARD_ONE_BACKWARD)
    obeyed: BoolArray = (layouts.virtual_pipeline == 1) | ((layouts.pipeline_parallel > 1) & rounds & is_interleaved)
    return obeyed


def batch_divides(layouts: Candidates, job: Job) -> BoolArray:
    """Return where the global batch is a whole number of micro-batches on every replica."""
    obeyed: BoolArray = job.global_batch_size % (layouts.data_parallel * layouts.micro_batch_size) == 0
    return obeyed


def sequence_divides(layouts: Candidates, job: Job) -> BoolArray:
    """Return where the sequence is cut evenly: twice for each context rank, so that causal work is balanced."""
    context = layouts.context_parallel
    even_context = (context == 1) | (job.sequence_length % (2 * context) == 0)
    even_sequence = ~layouts.sequence_parallel | (job.sequence_length % (context * layouts.tensor_parallel) == 0)
    obeyed: BoolArray = even_context & even_sequence
    return obeyed


def context_needs_flash(layouts: Candidates, job: Job) -> BoolArray:
    """Return where ring attention does not meet eager attention, which has no online softmax."""
    obeyed: BoolArray = (layouts.context_parallel == 1) | np.bool_(job.attention == "flash")
    return obeyed


def context_needs_attention(layouts: Candidates, job: Job) -> BoolArray:
    """Return where a sequence is not cut for recurrent layers, whose state no ring of keys and values carries on."""
    recurs = any(block_scan(part.block) is not None for part in job.layers)
    obeyed: BoolArray = (layouts.context_parallel == 1) | np.bool_(not recurs)
    return obeyed


def sequence_parallel_needs_tensor(layouts: Candidates, job: Job) -> BoolArray:  # noqa: ARG001
    """Return where sequence parallelism has tensor-parallel ranks to divide over."""
    return ~layouts.sequence_parallel | (layouts.tensor_parallel > 1)


def shard_group_divides(layouts: Candidates, job: Job) -> BoolArray:  # noqa: ARG001
    """Return where the replicas form whole shard groups."""
    group = layouts.shard_group
    obeyed: BoolArray = (
        (group >= 1) & (group <= layouts.data_parallel) & (layouts.data_parallel % np.maximum(group, 1) == 0)
    )
    return obeyed


def shard_group_has_ranks(layouts: Candidates, job: Job) -> BoolArray:  # noqa: ARG001
    """Return where a ZeRO stage has ranks to divide states over, wherever there are several replicas.

    Sources: huggingface/accelerate, parallelism_config.py (FSDP is refused where `dp_shard_size` and `cp_size` are 1);
    pytorch/torchtitan, distributed/parallel_dims.py (`fsdp_enabled` needs dp_shard or cp above 1).
    """
    obeyed: BoolArray = (
        (layouts.zero_stage == 0) | (layouts.data_parallel == 1) | (layouts.shard_group * layouts.context_parallel > 1)
    )
    return obeyed


def experts_divide(layouts: Candidates, job: Job) -> BoolArray:
    """Return where every expert-parallel rank has as many experts, and the ranks that may share them form groups."""
    obeyed = ranks_form_groups(layouts, job)
    for count in expert_counts(job) or {1}:
        obeyed = obeyed & (count % layouts.expert_parallel == 0)
    return obeyed


def experts_need_sequence_parallel(layouts: Candidates, job: Job) -> BoolArray:  # noqa: ARG001
    """Return where tensor-parallel ranks that share experts do not send the same tokens twice.

    Source: NVIDIA/Megatron-LM, training/arguments.py: expert beside tensor parallelism needs sequence parallelism.
    """
    alone: BoolArray = (layouts.expert_parallel == 1) | (layouts.tensor_parallel == 1)
    return alone | layouts.sequence_parallel


def experts_lie_in_shard_groups(layouts: Candidates, job: Job) -> BoolArray:
    """Return where experts are divided within a shard group, so that each group holds the whole model.

    Source: pytorch/torchtitan, distributed/parallel_dims.py: `ep` divides dp_shard x cp (x tp), never dp_replicate.
    """
    grouped = layouts.shard_group * layouts.context_parallel
    if job.profile.can.experts_over_tensor:
        grouped = grouped * layouts.tensor_parallel
    obeyed: BoolArray = (layouts.shard_group == layouts.data_parallel) | (grouped % layouts.expert_parallel == 0)
    return obeyed


def expert_shards_exist(layouts: Candidates, job: Job) -> BoolArray:
    """Return where the stack can cut experts: over fewer ranks than the rest, and evenly where it must."""
    obeyed = np.ones(1, dtype=bool)
    mixtures = [part for part in job.layers if any(weight.experts > 1 for weight in part.block.weights)]
    if mixtures:
        is_cut = layouts.zero_stage >= job.profile.sharding.optimizer_from
        by = divisions(layouts, np.where(is_cut, shard_ranks(layouts, job), WHOLE), job)
        for part in mixtures:
            obeyed = obeyed & are_divisible(part, by)
    return obeyed


def parameters_are_sharded_before_offload(layouts: Candidates, job: Job) -> BoolArray:
    """Return where parameters go to the host only in the stage that gathers them when needed."""
    return (layouts.offload < 2) | (layouts.zero_stage >= job.profile.can.parameter_offload_from)


def stage_three_reaches_nvme(layouts: Candidates, job: Job) -> BoolArray:
    """Return where NVMe is used only under ZeRO stage 3, the one stage with swappers (DeepSpeed, offload_config.py)."""
    obeyed: BoolArray = (layouts.offload == 0) | (layouts.zero_stage >= 3) | np.bool_(job.offload_target != "nvme")
    return obeyed


def compression_needs_whole_gradients(layouts: Candidates, job: Job) -> BoolArray:
    """Return where gradients are whole on every rank, which their compression needs (DeepSpeed's engine asserts it)."""
    obeyed: BoolArray = (layouts.zero_stage == 0) | np.bool_(job.gradient_compression == "none")
    return obeyed


def framework_can(layouts: Candidates, job: Job) -> BoolArray:
    """Return where the framework's abilities cover every degree."""
    can = job.profile.can
    obeyed = in_zero_stages(layouts.zero_stage, can.zero_stages)
    for able, degree in (
        (can.tensor_parallel, layouts.tensor_parallel),
        (can.pipeline_parallel, layouts.pipeline_parallel),
        (can.virtual_pipeline, layouts.virtual_pipeline),
        (can.context_parallel, layouts.context_parallel),
        (can.expert_parallel, layouts.expert_parallel),
    ):
        obeyed = obeyed if able else obeyed & (degree == 1)
    if can.expert_parallel:
        obeyed = obeyed & ((layouts.expert_parallel == 1) | in_zero_stages(layouts.zero_stage, can.expert_zero_stages))
    if not can.shard_group:
        obeyed = obeyed & (layouts.shard_group == layouts.data_parallel)
    sequence = np.array([choice in can.sequence_parallel for choice in (False, True)])
    obeyed = obeyed & ((layouts.tensor_parallel == 1) | sequence[layouts.sequence_parallel.astype(np.int64)])
    obeyed = obeyed & np.array([name in can.offload for name in OFFLOAD_TARGETS])[layouts.offload]
    if can.activation_offload == "none":
        obeyed = obeyed & ~layouts.activation_offload
    if not can.fused_cross_entropy:
        obeyed = obeyed & ~layouts.fused_cross_entropy
    if "full_layers" not in can.recompute and job.recompute_every is None:
        obeyed = obeyed & ((layouts.recompute != FULL) | (layouts.full_layers == ALL_LAYERS))
    modes = np.array([name in can.recompute for name in RECOMPUTE_MODES])
    able_to: BoolArray = obeyed & modes[layouts.recompute]
    return able_to


RULES: tuple[Rule, ...] = (
    Rule(name="framework", field="", reason="the framework cannot do this", obeyed=framework_can),
    Rule(
        name="heads_divide",
        field="tensor_parallel",
        reason="tensor_parallel must divide the attention heads and the key-value heads",
        obeyed=heads_divide,
    ),
    Rule(
        name="matrices_divide",
        field="tensor_parallel",
        reason="tensor_parallel must divide the feed-forward's width",
        obeyed=matrices_divide,
    ),
    Rule(
        name="stages_have_layers",
        field="pipeline_parallel",
        reason="pipeline_parallel x virtual_pipeline must not exceed the layers",
        obeyed=stages_have_layers,
    ),
    Rule(
        name="stages_have_blocks",
        field="pipeline_parallel",
        reason="every stage needs a layer, the head or the loss",
        obeyed=stages_have_blocks,
    ),
    Rule(
        name="stages_are_even",
        field="pipeline_parallel",
        reason="pipeline_parallel x virtual_pipeline must divide the layers",
        obeyed=stages_are_even,
    ),
    Rule(
        name="batch_divides",
        field="data_parallel",
        reason="data_parallel x micro_batch_size must divide global_batch_size",
        obeyed=batch_divides,
    ),
    Rule(
        name="recomputed_layers_divide",
        field="virtual_pipeline",
        reason="virtual_pipeline must divide the recomputed layers of a stage",
        obeyed=recomputed_layers_divide,
    ),
    Rule(
        name="interleaving_needs_pipeline",
        field="virtual_pipeline",
        reason=(
            "virtual_pipeline needs the schedule 1f1b, pipeline_parallel above 1, and a multiple of it as micro-batches"
        ),
        obeyed=interleaving_needs_pipeline,
    ),
    Rule(
        name="sequence_divides",
        field="context_parallel",
        reason="2 x context_parallel, and with sequence parallelism tensor_parallel, must divide sequence_length",
        obeyed=sequence_divides,
    ),
    Rule(
        name="context_needs_flash",
        field="context_parallel",
        reason="context parallelism needs flash attention",
        obeyed=context_needs_flash,
    ),
    Rule(
        name="context_needs_attention",
        field="context_parallel",
        reason="context parallelism cannot be planned for recurrent layers",
        obeyed=context_needs_attention,
    ),
    Rule(
        name="sequence_parallel_needs_tensor",
        field="sequence_parallel",
        reason="sequence_parallel needs tensor_parallel above 1",
        obeyed=sequence_parallel_needs_tensor,
    ),
    Rule(
        name="shard_group_divides",
        field="shard_group",
        reason="shard_group must divide data_parallel",
        obeyed=shard_group_divides,
    ),
    Rule(
        name="shard_group_has_ranks",
        field="shard_group",
        reason="a shard_group of 1 leaves a ZeRO stage nothing to divide over",
        obeyed=shard_group_has_ranks,
    ),
    Rule(
        name="experts_divide",
        field="expert_parallel",
        reason=(
            "expert_parallel must divide the number of experts and data_parallel x context_parallel "
            "(x tensor_parallel where the framework allows it)"
        ),
        obeyed=experts_divide,
    ),
    Rule(
        name="experts_need_sequence_parallel",
        field="sequence_parallel",
        reason="expert_parallel with tensor_parallel needs sequence_parallel",
        obeyed=experts_need_sequence_parallel,
    ),
    Rule(
        name="experts_lie_in_shard_groups",
        field="expert_parallel",
        reason=(
            "expert_parallel must divide shard_group x context_parallel (x tensor_parallel where the framework allows "
            "it)"
        ),
        obeyed=experts_lie_in_shard_groups,
    ),
    Rule(
        name="expert_shards_exist",
        field="shard_group",
        reason=(
            "shard_group must be a multiple of expert_parallel, and their ratio must divide the experts' second "
            "dimension"
        ),
        obeyed=expert_shards_exist,
    ),
    Rule(
        name="offload_needs_sharding",
        field="offload",
        reason="offloading parameters needs zero_stage 3",
        obeyed=parameters_are_sharded_before_offload,
    ),
    Rule(
        name="compression_needs_whole_gradients",
        field="zero_stage",
        reason="compressed gradients need zero_stage 0",
        obeyed=compression_needs_whole_gradients,
    ),
    Rule(
        name="nvme_needs_stage_three",
        field="offload_target",
        reason="offloading to NVMe needs zero_stage 3",
        obeyed=stage_three_reaches_nvme,
    ),
)

# The rules that read how many replicas there are, or how they are grouped: all that a run can break by growing.
RULES_OF_REPLICAS = tuple(
    rule
    for rule in RULES
    if rule.obeyed
    in (
        batch_divides,
        interleaving_needs_pipeline,
        shard_group_divides,
        shard_group_has_ranks,
        experts_divide,
        experts_lie_in_shard_groups,
        expert_shards_exist,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Obeyed:
    """Which layouts may exist, and how many each rule was the first to exclude; rules that all obey are left out."""

    allowed: BoolArray
    excluded: dict[str, int]


def obey(layouts: Candidates, job: Job, among: BoolArray | None = None, rules: Sequence[Rule] = RULES) -> Obeyed:
    """Return the layouts, of those in the mask `among`, that break no rule.

    Each of the others is counted under the first rule it breaks.
    """
    allowed, shape = np.ones(1, dtype=bool) if among is None else among, layouts.shape
    excluded: dict[str, int] = {}
    for rule in rules:
        obeyed = rule.obeyed(layouts, job)
        # What all obey need not be spread over the axes it depends on.
        if obeyed.all():
            continue
        excluded[rule.name] = counted(allowed & ~obeyed, shape)
        allowed = allowed & obeyed
    return Obeyed(allowed=np.broadcast_to(allowed, shape), excluded=excluded)


def rule_by_name(name: str) -> Rule:
    """Return the rule of that name."""
    return next(rule for rule in RULES if rule.name == name)
