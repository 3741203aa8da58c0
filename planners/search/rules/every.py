"""All rules of layouts, in the order in which they are reported, and the layouts that obey them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import BoolArray, Candidates
from plimsoll.planners.layouts.grid import counted
from plimsoll.planners.search.rules.activation_offload import (
    ACTIVATIONS_GO_BY_PARTS,
    ACTIVATIONS_GO_WITH_RECOMPUTE,
    LAYERS_GO_WHOLE,
)
from plimsoll.planners.search.rules.divisibility import (
    BATCH_DIVIDES,
    CONTEXT_NEEDS_ATTENTION,
    CONTEXT_NEEDS_FLASH,
    EXCHANGED_HEADS_DIVIDE,
    HEADS_DIVIDE,
    MATRICES_DIVIDE,
    SEQUENCE_DIVIDES,
    SEQUENCE_PARALLEL_NEEDS_TENSOR,
)
from plimsoll.planners.search.rules.experts import (
    EXPERT_SHARDS_EXIST,
    EXPERTS_DIVIDE,
    EXPERTS_LIE_IN_SHARD_GROUPS,
    EXPERTS_NEED_SEQUENCE_PARALLEL,
)
from plimsoll.planners.search.rules.listed_stages import PIPELINE_LAYOUT_LISTS_LAYERS
from plimsoll.planners.search.rules.overlap import (
    EXPERT_OVERLAP_HAS_PAIRS,
    PARAMETERS_HIDE_WITH_GRADIENTS,
    TENSOR_OVERLAP_HAS_PIECES,
)
from plimsoll.planners.search.rules.pipelines import (
    INTERLEAVING_NEEDS_PIPELINE,
    PIPELINE_LAYOUT_DIVIDES,
    PIPELINES_HAVE_CODE,
    RECOMPUTED_LAYERS_DIVIDE,
    STAGES_HAVE_LAYERS,
)
from plimsoll.planners.search.rules.request import REQUEST_RULES
from plimsoll.planners.search.rules.rule import NOWHERE, RequestRule, Rule
from plimsoll.planners.search.rules.stack import ADAPTERS_LIE_WHOLE, EXPERTS_DIVIDE_IN_STAGE, STACK_IS_ABLE
from plimsoll.planners.search.rules.zero import (
    COMPRESSION_NEEDS_WHOLE_GRADIENTS,
    LOW_PRECISION_WEIGHTS_NEED_SHARDING,
    NVME_NEEDS_STAGE_THREE,
    OFFLOAD_NEEDS_SHARDING,
    REPLICAS_ARE_SHARDED,
    SECONDARY_GROUP_DIVIDES,
    SHARD_GROUP_DIVIDES,
    SHARD_GROUP_HAS_RANKS,
    STAGE_DIVIDES_OPTIMIZER,
    STATE_DTYPES_NEED_SHARDING,
    STATES_ON_HOST_NEED_DELAYED_SCALING,
)

RULES: tuple[Rule, ...] = (
    STACK_IS_ABLE,
    EXPERTS_DIVIDE_IN_STAGE,
    ADAPTERS_LIE_WHOLE,
    HEADS_DIVIDE,
    MATRICES_DIVIDE,
    STAGES_HAVE_LAYERS,
    PIPELINES_HAVE_CODE,
    PIPELINE_LAYOUT_DIVIDES,
    BATCH_DIVIDES,
    RECOMPUTED_LAYERS_DIVIDE,
    INTERLEAVING_NEEDS_PIPELINE,
    SEQUENCE_DIVIDES,
    CONTEXT_NEEDS_FLASH,
    CONTEXT_NEEDS_ATTENTION,
    EXCHANGED_HEADS_DIVIDE,
    SEQUENCE_PARALLEL_NEEDS_TENSOR,
    SHARD_GROUP_DIVIDES,
    SHARD_GROUP_HAS_RANKS,
    SECONDARY_GROUP_DIVIDES,
    REPLICAS_ARE_SHARDED,
    EXPERTS_DIVIDE,
    EXPERTS_NEED_SEQUENCE_PARALLEL,
    EXPERTS_LIE_IN_SHARD_GROUPS,
    EXPERT_SHARDS_EXIST,
    EXPERT_OVERLAP_HAS_PAIRS,
    TENSOR_OVERLAP_HAS_PIECES,
    PARAMETERS_HIDE_WITH_GRADIENTS,
    OFFLOAD_NEEDS_SHARDING,
    ACTIVATIONS_GO_BY_PARTS,
    ACTIVATIONS_GO_WITH_RECOMPUTE,
    LAYERS_GO_WHOLE,
    COMPRESSION_NEEDS_WHOLE_GRADIENTS,
    STAGE_DIVIDES_OPTIMIZER,
    STATE_DTYPES_NEED_SHARDING,
    LOW_PRECISION_WEIGHTS_NEED_SHARDING,
    STATES_ON_HOST_NEED_DELAYED_SCALING,
    NVME_NEEDS_STAGE_THREE,
)
# What a request breaks whatever the stack and the layout.
RULES_OF_REQUESTS: tuple[RequestRule, ...] = (*REQUEST_RULES, PIPELINE_LAYOUT_LISTS_LAYERS)
# The rules that fixed degrees can break by themselves, in the order in which a client is told.
RULES_OF_FIXED = (
    HEADS_DIVIDE,
    STAGES_HAVE_LAYERS,
    BATCH_DIVIDES,
    SHARD_GROUP_DIVIDES,
    EXPERTS_DIVIDE,
    SEQUENCE_PARALLEL_NEEDS_TENSOR,
)
# The rules that read how many replicas there are, or how they are grouped: all that a run can break by growing.
RULES_OF_REPLICAS = tuple(rule for rule in RULES if {"data_parallel", "shard_group"} & {*rule.reads})
# Those that a smaller group than all replicas may obey where that one does not; offload asks for more ranks, not fewer.
RULES_OF_SHARD_GROUPS = tuple(
    rule for rule in RULES if "shard_group" in rule.reads and rule is not OFFLOAD_NEEDS_SHARDING
)
RULES_OF_BATCHES = tuple(rule for rule in RULES if "micro_batch_size" in rule.reads)


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
        broken = rule.broken(layouts, job)
        # What all obey need not be spread over the axes it depends on.
        if broken is NOWHERE or not np.count_nonzero(broken):
            continue
        excluded[rule.name] = counted(allowed & broken, shape)
        allowed = allowed & ~broken
    return Obeyed(allowed=np.broadcast_to(allowed, shape), excluded=excluded)


def rule_by_name(name: str) -> Rule:
    """Return the rule of that name."""
    return next(rule for rule in RULES if rule.name == name)
