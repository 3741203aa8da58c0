"""Which layouts can exist: one function a rule, each with its reason and the field at fault.

A rule returns a mask over `Candidates`, true where the layout obeys it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planners.layout.candidates import ALL_LAYERS, FULL, NONE, SELECTIVE, BoolArray, Candidates
from planners.layout.experts import expert_counts, ranks_form_groups
from planners.memory.job import Job
from planners.memory.recurrent import block_scan
from planners.memory.shards import divisions, split_elements


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
    """Return where the layers' matrices are cut into equal parts."""
    by = divisions(layouts.tensor_parallel, np.ones_like(layouts.tensor_parallel))
    obeyed = np.ones(len(layouts), dtype=bool)
    for part in job.layers:
        split = [weight for weight in part.block.weights if weight.dim is not None]
        whole = sum(weight.elements for weight in split)
        obeyed &= split_elements(split, by) * layouts.tensor_parallel == whole
    return obeyed


def stages_have_layers(layouts: Candidates, job: Job) -> BoolArray:
    """Return where every chunk of every pipeline stage has a layer."""
    return layouts.pipeline_parallel * layouts.virtual_pipeline <= job.model.num_layers


def stages_are_even(layouts: Candidates, job: Job) -> BoolArray:
    """Return where layers divide evenly, which some stacks and every interleaved schedule need."""
    chunks = layouts.pipeline_parallel * layouts.virtual_pipeline
    needs = (layouts.virtual_pipeline > 1) | job.profile.can.even_stages
    obeyed: BoolArray = ~needs | (job.model.num_layers % chunks == 0)
    return obeyed


def interleaving_needs_pipeline(layouts: Candidates, job: Job) -> BoolArray:
    """Return where virtual stages stand on a pipeline whose micro-batches come in whole rounds.

    Source: Narayanan et al. 2021, section 2.2: micro-batches must be a multiple of the stages.
    """
    rounds = layouts.micro_batches(job.global_batch_size) % layouts.pipeline_parallel == 0
    obeyed: BoolArray = (layouts.virtual_pipeline == 1) | ((layouts.pipeline_parallel > 1) & rounds)
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


def experts_divide(layouts: Candidates, job: Job) -> BoolArray:
    """Return where every expert-parallel rank has as many experts, and the ranks that may share them form groups."""
    obeyed = ranks_form_groups(layouts, job)
    for count in expert_counts(job) or {1}:
        obeyed &= count % layouts.expert_parallel == 0
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


def parameters_are_sharded_before_offload(layouts: Candidates, job: Job) -> BoolArray:
    """Return where parameters go to the host only in the stage that gathers them when needed."""
    return (layouts.offload < 2) | (layouts.zero_stage >= 3) | np.bool_(job.profile.name == "reference")


def framework_can(layouts: Candidates, job: Job) -> BoolArray:
    """Return where the framework's abilities cover every degree."""
    can = job.profile.can
    obeyed = np.isin(layouts.zero_stage, can.zero_stages)
    for able, degree in (
        (can.tensor_parallel, layouts.tensor_parallel),
        (can.pipeline_parallel, layouts.pipeline_parallel),
        (can.virtual_pipeline, layouts.virtual_pipeline),
        (can.context_parallel, layouts.context_parallel),
        (can.expert_parallel, layouts.expert_parallel),
    ):
        obeyed &= np.bool_(able) | (degree == 1)
    obeyed &= (layouts.expert_parallel == 1) | np.isin(layouts.zero_stage, can.expert_zero_stages)
    obeyed &= np.bool_(can.shard_group) | (layouts.shard_group == layouts.data_parallel)
    obeyed &= (layouts.tensor_parallel == 1) | np.isin(layouts.sequence_parallel, can.sequence_parallel)
    obeyed &= np.isin(layouts.offload, [index for index, name in enumerate(OFFLOADS) if name in can.offload])
    obeyed &= ~layouts.fused_cross_entropy | np.bool_(can.fused_cross_entropy)
    limited = (layouts.recompute == FULL) & (layouts.full_layers != ALL_LAYERS)
    obeyed &= ~limited | np.bool_("full_layers" in can.recompute)
    modes = {NONE: "none", SELECTIVE: "selective", FULL: "full"}
    return obeyed & np.isin(layouts.recompute, [mode for mode, name in modes.items() if name in can.recompute])


OFFLOADS = ("none", "optimizer", "optimizer+parameters")

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
        name="interleaving_needs_pipeline",
        field="virtual_pipeline",
        reason="virtual_pipeline needs pipeline stages, and micro-batches in whole rounds of them",
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
        reason="context parallelism is planned for attention only, not for recurrent layers",
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
        name="experts_divide",
        field="expert_parallel",
        reason=(
            "expert_parallel must divide the experts (a dense model has one) and data_parallel x context_parallel "
            "(x tensor_parallel where the framework lets it)"
        ),
        obeyed=experts_divide,
    ),
    Rule(
        name="experts_need_sequence_parallel",
        field="sequence_parallel",
        reason="expert_parallel beside tensor_parallel needs sequence_parallel",
        obeyed=experts_need_sequence_parallel,
    ),
    Rule(
        name="experts_lie_in_shard_groups",
        field="expert_parallel",
        reason="expert_parallel must divide shard_group x context_parallel (x tensor_parallel where it may)",
        obeyed=experts_lie_in_shard_groups,
    ),
    Rule(
        name="offload_needs_sharding",
        field="offload",
        reason="offloading parameters needs zero_stage 3",
        obeyed=parameters_are_sharded_before_offload,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Obeyed:
    """Which layouts may exist, and how many each rule was the first to exclude."""

    allowed: BoolArray
    excluded: dict[str, int]


def obey(layouts: Candidates, job: Job) -> Obeyed:
    """Return the layouts that break no rule; each of the others is counted under the first it breaks."""
    allowed = np.ones(len(layouts), dtype=bool)
    excluded: dict[str, int] = {}
    for rule in RULES:
        obeyed = rule.obeyed(layouts, job)
        excluded[rule.name] = int(np.count_nonzero(allowed & ~obeyed))
        allowed &= obeyed
    return Obeyed(allowed=allowed, excluded=excluded)


def rule_by_name(name: str) -> Rule:
    """Return the rule of that name."""
    return next(rule for rule in RULES if rule.name == name)
