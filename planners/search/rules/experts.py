"""What expert parallelism needs: experts, ranks and shards that divide evenly."""

from __future__ import annotations

import numpy as np

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import BoolArray, Candidates
from plimsoll.planners.layouts.experts import expert_counts, ranks_form_groups
from plimsoll.planners.memory.holdings import shard_ranks
from plimsoll.planners.memory.shards import WHOLE, are_divisible, divisions
from plimsoll.planners.search.rules.rule import NOWHERE, Asked, Breach, Case, FixedBreach, Rule, anywhere


def _most_experts(model: ModelSpec) -> int:
    return max(expert_counts(model), default=1)


def _fewer_experts(model: ModelSpec) -> list[int]:
    """Return the numbers of experts of layers that have fewer than the others."""
    return sorted(expert_counts(model))[:-1]


def _divides_none(layouts: Candidates) -> bool:
    """Return whether no layout divides experts over ranks."""
    return int(layouts.expert_parallel.max(initial=1)) == 1


def _splits_experts(layouts: Candidates, asked: Asked) -> BoolArray:
    """Return where ranks have unlike numbers of experts, or none."""
    if _divides_none(layouts):
        return NOWHERE
    split: BoolArray = _most_experts(asked.model) % layouts.expert_parallel != 0
    return split


def _splits_fewer_experts_or_ranks(layouts: Candidates, job: Job) -> BoolArray:
    """Return where that is so of layers with fewer experts, or ranks that may share experts form no whole groups."""
    if _divides_none(layouts):
        return NOWHERE
    by_experts = (count % layouts.expert_parallel != 0 for count in _fewer_experts(job.model))
    return anywhere((~ranks_form_groups(layouts, job), *by_experts))


def _experts(case: Case, asked: Asked) -> str:
    most = _most_experts(asked.model)
    if most == 1:
        return "This model has no experts; expert_parallel must be 1."
    degree = case.layout.expert_parallel
    below = max(each for each in range(1, min(degree, most + 1)) if most % each == 0)
    above = [each for each in range(degree + 1, most + 1) if most % each == 0][:1]
    return (
        f"expert_parallel {degree} does not divide the {most} experts; {' or '.join(map(str, (below, *above)))} does."
    )


def _fewer_experts_or_ranks(case: Case, job: Job) -> str:
    layout, degree = case.layout, case.layout.expert_parallel
    uneven = [f"the {count} experts" for count in _fewer_experts(job.model) if count % degree]
    if not ranks_form_groups(case.layouts.take([0]), job).all():
        ranks, product = layout.data_parallel * layout.context_parallel, "data_parallel x context_parallel"
        if job.profile.can.experts_over_tensor:
            ranks, product = ranks * layout.tensor_parallel, f"{product} x tensor_parallel"
        uneven.append(f"{product} = {ranks}")
    return f"expert_parallel {degree} does not divide {' or '.join(uneven)}."


EXPERTS_DIVIDE = Rule(
    name="experts_divide",
    field="expert_parallel",
    reads=("expert_parallel", "data_parallel", "context_parallel", "tensor_parallel"),
    reason=(
        "expert_parallel must divide the number of experts and data_parallel x context_parallel "
        "(x tensor_parallel where the framework allows it)"
    ),
    breaches=(
        FixedBreach(where=_splits_experts, words=_experts),
        Breach(where=_splits_fewer_experts_or_ranks, words=_fewer_experts_or_ranks),
    ),
)


def _sends_tokens_twice(layouts: Candidates, _job: Job) -> BoolArray:
    """Return where tensor-parallel ranks that share experts send the same tokens twice.

    Source: NVIDIA/Megatron-LM, training/arguments.py: expert beside tensor parallelism needs sequence parallelism.
    """
    if _divides_none(layouts):
        return NOWHERE
    twice: BoolArray = (layouts.expert_parallel > 1) & (layouts.tensor_parallel > 1) & ~layouts.sequence_parallel
    return twice


def _tokens_twice(case: Case, _job: Job) -> str:
    return (
        f"expert_parallel {case.layout.expert_parallel} beside tensor_parallel {case.layout.tensor_parallel} needs "
        "sequence_parallel: without it tensor-parallel ranks would send the same tokens twice."
    )


EXPERTS_NEED_SEQUENCE_PARALLEL = Rule(
    name="experts_need_sequence_parallel",
    field="sequence_parallel",
    reads=("expert_parallel", "tensor_parallel"),
    reason="expert_parallel with tensor_parallel needs sequence_parallel",
    breaches=(Breach(where=_sends_tokens_twice, words=_tokens_twice),),
)


def _leaves_shard_groups(layouts: Candidates, job: Job) -> BoolArray:
    """Return where experts are not divided within a shard group, so that no group holds the whole model.

    Source: pytorch/torchtitan, distributed/parallel_dims.py: `ep` divides dp_shard x cp (x tp), never dp_replicate.
    """
    if _divides_none(layouts):
        return NOWHERE
    grouped = layouts.shard_group * layouts.context_parallel
    if job.profile.can.experts_over_tensor:
        grouped = grouped * layouts.tensor_parallel
    left: BoolArray = (layouts.shard_group != layouts.data_parallel) & (grouped % layouts.expert_parallel != 0)
    return left


def _left_shard_groups(case: Case, job: Job) -> str:
    ranks = case.layout.shard_group * case.layout.context_parallel
    return (
        f"expert_parallel {case.layout.expert_parallel} does not divide the {ranks} ranks of a shard group, within "
        f"which {job.profile.name} divides experts."
    )


EXPERTS_LIE_IN_SHARD_GROUPS = Rule(
    name="experts_lie_in_shard_groups",
    field="expert_parallel",
    reads=("expert_parallel", "shard_group", "context_parallel"),
    reason=(
        "expert_parallel must divide shard_group x context_parallel (x tensor_parallel where the framework allows it)"
    ),
    breaches=(Breach(where=_leaves_shard_groups, words=_left_shard_groups),),
)


def _cannot_cut_experts(layouts: Candidates, job: Job) -> BoolArray:
    """Return where the stack cannot cut experts: over fewer ranks than the rest, and evenly where it must."""
    mixtures = [part for part in job.layers if any(weight.experts > 1 for weight in part.block.weights)]
    if not mixtures:
        return NOWHERE
    is_cut = layouts.zero_stage >= job.profile.sharding.optimizer_from
    by = divisions(layouts, np.where(is_cut, shard_ranks(layouts, job), WHOLE), job)
    return anywhere(~are_divisible(part, by) for part in mixtures)


def _uncut_experts(case: Case, job: Job) -> str:
    ranks, degree = case.layout.shard_group, case.layout.expert_parallel
    if ranks % degree:
        return f"shard_group {ranks} is not a multiple of expert_parallel {degree}."
    return (
        f"{job.profile.name} splits each expert over shard_group {ranks} / expert_parallel {degree} = "
        f"{ranks // degree} ranks, which do not divide it evenly."
    )


EXPERT_SHARDS_EXIST = Rule(
    name="expert_shards_exist",
    field="shard_group",
    reads=("shard_group", "expert_parallel"),
    reason=(
        "shard_group must be a multiple of expert_parallel, and their ratio must divide the experts' second dimension"
    ),
    breaches=(Breach(where=_cannot_cut_experts, words=_uncut_experts),),
)
