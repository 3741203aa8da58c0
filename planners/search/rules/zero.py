"""What ZeRO stages need: replicas in whole shard groups, and the right stage for what goes off the device."""

from __future__ import annotations

import numpy as np

from plimsoll.planners.formats.precision import FP8_MIXED, FP32_BYTES
from plimsoll.planners.ground.figures import listed
from plimsoll.planners.ground.terms import HIGHEST_ZERO_STAGE, NVME, OFFLOADS
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.jobs.recompute_modules import NOT_WITH_DELAYED_SCALING
from plimsoll.planners.layouts.candidates import BoolArray, Candidates, IntArray, recomputes_module
from plimsoll.planners.search.rules.rule import NOWHERE, Asked, Breach, Case, FixedBreach, Rule, anywhere

EVERY_STATE = "optimizer+parameters"


def _splits(group: IntArray, data: IntArray) -> BoolArray:
    """Return where so many replicas are not whole groups."""
    split: BoolArray = (group < 1) | (group > data) | (data % np.maximum(group, 1) != 0)
    return split


def _splits_replicas(layouts: Candidates, _asked: Asked) -> BoolArray:
    return _splits(layouts.shard_group, layouts.data_parallel)


def _group(case: Case, _asked: Asked) -> str:
    return f"shard_group {case.layout.shard_group} does not divide data_parallel {case.layout.data_parallel}."


SHARD_GROUP_DIVIDES = Rule(
    name="shard_group_divides",
    field="shard_group",
    reads=("shard_group", "data_parallel"),
    reason="shard_group must divide data_parallel",
    breaches=(FixedBreach(where=_splits_replicas, words=_group, given=("shard_group", "data_parallel")),),
)


def _shards_alone(layouts: Candidates, _job: Job) -> BoolArray:
    """Return where a ZeRO stage has no ranks to divide states over, although there are several replicas.

    Sources: huggingface/accelerate, parallelism_config.py (FSDP is refused where `dp_shard_size` and `cp_size` are 1);
    pytorch/torchtitan, distributed/parallel_dims.py (`fsdp_enabled` needs dp_shard or cp above 1).
    """
    lone: BoolArray = (
        (layouts.zero_stage > 0) & (layouts.data_parallel > 1) & (layouts.shard_group * layouts.context_parallel == 1)
    )
    return lone


def _lone_group(case: Case, _job: Job) -> str:
    return (
        f"shard_group 1 leaves zero_stage {case.layout.zero_stage} nothing to divide over: beside data_parallel "
        f"{case.layout.data_parallel} it must be 2 or more."
    )


SHARD_GROUP_HAS_RANKS = Rule(
    name="shard_group_has_ranks",
    field="shard_group",
    reads=("shard_group", "data_parallel", "zero_stage"),
    reason="a shard_group of 1 leaves a ZeRO stage nothing to divide over",
    breaches=(Breach(where=_shards_alone, words=_lone_group),),
)


def _replicates(layouts: Candidates, job: Job) -> BoolArray:
    """Return where replicas each hold all states on a stack that shards whatever several ranks have."""
    if job.profile.can.replicates:
        return NOWHERE
    whole: BoolArray = (layouts.zero_stage == 0) & (layouts.data_parallel * layouts.context_parallel > 1)
    return whole


def _replicated(case: Case, job: Job) -> str:
    sharding = listed([str(stage) for stage in job.profile.can.zero_stages if stage], "or")
    ranks = case.layout.data_parallel * case.layout.context_parallel
    return f"{job.profile.name} shards the model over the {ranks} ranks that have it: zero_stage must be {sharding}."


REPLICAS_ARE_SHARDED = Rule(
    name="replicas_are_sharded",
    field="zero_stage",
    reads=("data_parallel", "context_parallel", "zero_stage"),
    reason="the framework shards the model over all ranks that have it: zero_stage must not be 0",
    breaches=(Breach(where=_replicates, words=_replicated),),
)


def _has_no_second_copy(layouts: Candidates, _job: Job) -> BoolArray:
    """Return where a second copy of the weights is asked for in a stage that does not divide them."""
    whole: BoolArray = (layouts.secondary_shard_group > 1) & (layouts.zero_stage < HIGHEST_ZERO_STAGE)
    return whole


def _second_copy(case: Case, _job: Job) -> str:
    layout = case.layout
    return f"secondary_shard_group {layout.secondary_shard_group} needs zero_stage 3, not {layout.zero_stage}."


def _splits_second_copy(layouts: Candidates, _job: Job) -> BoolArray:
    """Return where replicas are not whole groups that share a second copy (DeepSpeed, utils/groups.py)."""
    if layouts.secondary_shard_group.size == 1 and layouts.secondary_shard_group.item() == 1:
        return NOWHERE
    return _splits(layouts.secondary_shard_group, layouts.data_parallel)


def _split_copy(case: Case, _job: Job) -> str:
    layout = case.layout
    return f"secondary_shard_group {layout.secondary_shard_group} does not divide data_parallel {layout.data_parallel}."


def _copies_to_drives(layouts: Candidates, job: Job) -> BoolArray:
    """Return where a second copy would lie on NVMe, for which torch has no tensors (`_partition_param_sec`)."""
    if job.offload_target != NVME:
        return NOWHERE
    on_drives: BoolArray = (layouts.secondary_shard_group > 1) & (layouts.offload == OFFLOADS.index(EVERY_STATE))
    return on_drives


def _copy_on_drives(_case: Case, job: Job) -> str:
    return f"{job.profile.name} keeps no second copy of weights (secondary_shard_group) of parameters on NVMe."


SECONDARY_GROUP_DIVIDES = Rule(
    name="secondary_group_divides",
    field="secondary_shard_group",
    reads=("secondary_shard_group", "data_parallel", "zero_stage", "offload"),
    reason="a secondary_shard_group must divide data_parallel, and needs zero_stage 3 and no parameters on NVMe",
    breaches=(
        Breach(where=_has_no_second_copy, words=_second_copy),
        Breach(where=_splits_second_copy, words=_split_copy),
        Breach(where=_copies_to_drives, words=_copy_on_drives),
    ),
)


def _moves_whole_parameters(layouts: Candidates, job: Job) -> BoolArray:
    """Return where parameters go to the host in a stage that does not gather them when needed."""
    moves_parameters = layouts.offload == OFFLOADS.index(EVERY_STATE)
    whole: BoolArray = moves_parameters & (layouts.zero_stage < job.profile.can.parameter_offload_from)
    return whole


def _whole_parameters(case: Case, _job: Job) -> str:
    return f"offload {case.layout.offload} needs zero_stage 3, not {case.layout.zero_stage}."


def _moves_whole_states(layouts: Candidates, job: Job) -> BoolArray:
    """Return where optimizer states go to the host in a stage whose optimizer cannot be there."""
    whole: BoolArray = (layouts.offload > 0) & (layouts.zero_stage < job.profile.can.optimizer_offload_from)
    return whole


def _whole_states(case: Case, job: Job) -> str:
    name, stage = job.profile.name, job.profile.can.optimizer_offload_from
    return f"With {name}, offload {case.layout.offload} needs zero_stage {stage}, not {case.layout.zero_stage}."


def _moves_alone(layouts: Candidates, job: Job) -> BoolArray:
    """Return where states go to the host of a stack that moves what it shards, and there are no ranks to shard over.

    Sources: pytorch/torchtitan, models/llama3/infra/parallelize.py (`apply_fsdp`, which offloads, is called where
    `fsdp_enabled`); pytorch/torchtune, recipes/full_finetune_distributed.py (`shard_model` with several replicas).
    """
    if job.profile.can.lone_rank_offload:
        return NOWHERE
    alone: BoolArray = (layouts.offload > 0) & (layouts.shard_group * layouts.context_parallel == 1)
    return alone


def _lone_states(case: Case, job: Job) -> str:
    return (
        f"With {job.profile.name}, offload {case.layout.offload} needs shard_group x context_parallel of 2 or "
        "more: it moves shards, and a rank alone has none."
    )


def _narrows_states_on_host(layouts: Candidates, job: Job) -> BoolArray:
    """Return where states on the host are asked for in fewer bytes than the stack has for them there."""
    is_narrow = job.profile.host.copies_parameters and job.states.moment < FP32_BYTES
    return layouts.offload > 0 if is_narrow else NOWHERE


def _narrow_states(_case: Case, job: Job) -> str:
    return f"{job.profile.name} keeps states on the host in fp32. Leave out either optimizer_state_dtype or offload."


OFFLOAD_NEEDS_SHARDING = Rule(
    name="offload_needs_sharding",
    field="offload",
    reads=("offload", "zero_stage", "shard_group", "context_parallel"),
    reason=(
        "offloading parameters needs zero_stage 3, and states where the stack divides them, over several ranks where "
        "it moves only shards"
    ),
    breaches=(
        Breach(where=_moves_whole_parameters, words=_whole_parameters),
        Breach(where=_moves_whole_states, words=_whole_states),
        Breach(where=_narrows_states_on_host, words=_narrow_states),
        Breach(where=_moves_alone, words=_lone_states),
    ),
)


def _compresses_shards(layouts: Candidates, job: Job) -> BoolArray:
    """Return where no rank has whole gradients, which their compression needs (DeepSpeed's engine asserts it)."""
    shards: BoolArray = NOWHERE if job.gradient_compression == "none" else layouts.zero_stage > 0
    return shards


def _compressed_shards(case: Case, job: Job) -> str:
    return f"gradient_compression {job.gradient_compression} needs zero_stage 0, not {case.layout.zero_stage}."


COMPRESSION_NEEDS_WHOLE_GRADIENTS = Rule(
    name="compression_needs_whole_gradients",
    field="zero_stage",
    reads=("zero_stage",),
    reason="compressed gradients need zero_stage 0",
    breaches=(Breach(where=_compresses_shards, words=_compressed_shards),),
)


def _divides_whole_states(layouts: Candidates, job: Job) -> BoolArray:
    """Return where a ZeRO stage would divide states that the stack's sharded optimizer does not take."""
    is_whole = job.optimizer.name in job.profile.can.undivided_optimizers
    divided: BoolArray = layouts.zero_stage > 0 if is_whole else NOWHERE
    return divided


def _divided_states(case: Case, job: Job) -> str:
    return (
        f"With {job.profile.name}, optimizer {job.optimizer.name} needs zero_stage 0, not {case.layout.zero_stage}: "
        "its sharded optimizer does not take that one."
    )


STAGE_DIVIDES_OPTIMIZER = Rule(
    name="stage_divides_optimizer",
    field="zero_stage",
    reads=("zero_stage",),
    reason="the stack divides no states of this optimizer over ranks: zero_stage must be 0",
    breaches=(Breach(where=_divides_whole_states, words=_divided_states),),
)


def _narrows_undivided_states(layouts: Candidates, job: Job) -> BoolArray:
    """Return where gradients or states are asked for in dtypes that the stack has for a sharded optimizer alone."""
    usual, least = job.profile.states[job.precision.name], job.profile.can.state_dtypes_from
    is_usual = (job.states.gradient, job.states.moment) == (usual.gradient, usual.moment)
    return NOWHERE if is_usual else layouts.zero_stage < least


def _undivided_dtypes(case: Case, job: Job) -> str:
    name, least = job.profile.name, job.profile.can.state_dtypes_from
    return (
        f"With {name}, gradient_dtype and optimizer_state_dtype need zero_stage {least}, not {case.layout.zero_stage}."
    )


STATE_DTYPES_NEED_SHARDING = Rule(
    name="state_dtypes_need_sharding",
    field="zero_stage",
    reads=("zero_stage",),
    reason="the stack has other dtypes of gradients and states for its sharded optimizer alone",
    breaches=(Breach(where=_narrows_undivided_states, words=_undivided_dtypes),),
)


def _updates_them_whole(layouts: Candidates, job: Job) -> BoolArray:
    """Return where weights that lie in 8 or 4 bits alone are updated by an optimizer that is not divided.

    Source: Megatron-LM, training/arguments.py ("--fp8-param-gather only supported with distributed optimizer").
    """
    whole: BoolArray = layouts.zero_stage == 0 if job.low_precision_weights else NOWHERE
    return whole


def _updated_whole(case: Case, job: Job) -> str:
    return f"With {job.profile.name}, low_precision_weights need zero_stage 1, not {case.layout.zero_stage}."


LOW_PRECISION_WEIGHTS_NEED_SHARDING = Rule(
    name="low_precision_weights_need_sharding",
    field="zero_stage",
    reads=("zero_stage",),
    reason="weights that lie in 8 or 4 bits alone are updated by a sharded optimizer alone",
    breaches=(Breach(where=_updates_them_whole, words=_updated_whole),),
)


def _scales_otherwise(layouts: Candidates, job: Job) -> BoolArray:
    """Return where states lie on the host beside weights in 8 or 4 bits alone that are not scaled with delay.

    Source: Megatron-LM, training/arguments.py, "the optimizer cpu offload must be used in conjunction with
    `--fp8-recipe delayed`". What delayed scaling does not recompute is scaled by present values.
    """
    if not job.low_precision_weights or job.method != "full":
        return NOWHERE
    otherwise = anywhere(recomputes_module(layouts, job, name) for name in NOT_WITH_DELAYED_SCALING)
    scaled: BoolArray = (layouts.offload > 0) & (np.bool_(job.precision.name != FP8_MIXED) | otherwise)
    return scaled


def _scaled_otherwise(_case: Case, job: Job) -> str:
    needed = f"With {job.profile.name}, states on the host beside low_precision_weights need"
    if job.precision.name == FP8_MIXED:
        modules = listed(NOT_WITH_DELAYED_SCALING, "or")
        return f"{needed} delayed scaling, which does not recompute {modules}."
    return (
        f"{needed} precision {FP8_MIXED}, not {job.precision.name}: set low_precision_weights false, or offload none."
    )


STATES_ON_HOST_NEED_DELAYED_SCALING = Rule(
    name="states_on_host_need_delayed_scaling",
    field="offload",
    reads=("offload",),
    reason="states on the host need delayed scaling where weights lie in 8 or 4 bits alone",
    breaches=(Breach(where=_scales_otherwise, words=_scaled_otherwise),),
)


def _swaps_below_stage_three(layouts: Candidates, job: Job) -> BoolArray:
    """Return where NVMe is used below ZeRO stage 3, the one stage with swappers (DeepSpeed, offload_config.py)."""
    if job.offload_target != NVME:
        return NOWHERE
    swaps: BoolArray = (layouts.offload > 0) & (layouts.zero_stage < HIGHEST_ZERO_STAGE)
    return swaps


def _swapped_below(case: Case, _job: Job) -> str:
    return f"offload_target nvme needs zero_stage 3, not {case.layout.zero_stage}: only stage 3 can use NVMe."


NVME_NEEDS_STAGE_THREE = Rule(
    name="nvme_needs_stage_three",
    field="offload_target",
    reads=("zero_stage",),
    reason="offloading to NVMe needs zero_stage 3",
    breaches=(Breach(where=_swaps_below_stage_three, words=_swapped_below),),
)
