"""Checkpoints with one scale per block of a matrix, whose feed-forward layers engines divide between blocks only."""

from __future__ import annotations

from functools import lru_cache

from plimsoll.planners.architecture import ModelSpec, Part, Split, Weight
from plimsoll.planners.ground.errors import ImpossibleLayout
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.releases.cards import is_amd
from plimsoll.planners.serving.releases.profile import is_older
from plimsoll.planners.serving.releases.rules import ScaleBlockRules
from plimsoll.planners.serving.releases.tables import read_table
from plimsoll.planners.serving.weights.placement import policy_of
from plimsoll.planners.sharding import ShardingPolicy, ShardLayout
from plimsoll.planners.sharding.weights import checkpoint_tensor, is_expert

BLOCK_FORMAT = "fp8"
MOST_KEPT_DIVISIONS = 4096
# Name of the rule, in refusals.
SCALE_BLOCKS = "scale-blocks-divide"


def block_obstacle(question: ServingQuestion, degrees: Degrees, version: str) -> ImpossibleLayout | None:
    """Return why a version of the engine does not load the checkpoint so divided, or None."""
    block = question.scale_block
    if block is None or question.weights != BLOCK_FORMAT:
        return None
    parts = _checked_parts(question, version)
    weight = _cut_weight(ByIdentity(question.model), degrees.shard_layout, policy_of(question.engine), block, parts)
    if weight is None or weight.dim is None:
        return None
    ranks = degrees.expert_tensor_parallel if is_expert(weight) else degrees.tensor_parallel
    length = _features(weight, weight.shape)
    way_out = (
        f"Deal whole experts out with expert_parallel {degrees.ranks_per_stage}, or take a smaller tensor_parallel."
        if is_expert(weight)
        else "Take a smaller tensor_parallel."
    )
    return ImpossibleLayout(
        f"tensor_parallel {degrees.tensor_parallel} is impossible: the checkpoint has one scale per {block} x {block} "
        f"block, and {weight.part.replace('_', '-')} layers of {length:,} features divided over {ranks} ranks have "
        f"{length // ranks:,} each, which is no multiple of {block}. {way_out}",
        rule=SCALE_BLOCKS,
        pointer="/layout/tensor_parallel",
    )


def _checked_parts(question: ServingQuestion, version: str) -> frozenset[Part]:
    """Return the parts of a model of which the engine asks that every rank holds whole blocks."""
    rules = ScaleBlockRules(**read_table(question.engine)["scale_blocks"])
    if rules.is_nvidia_only and is_amd(question.hardware.gpu):
        return frozenset()
    cuts_experts = rules.cuts_experts_from is not None and not is_older(version, rules.cuts_experts_from)
    return frozenset(map(Part, rules.whole_parts)) - ({Part.EXPERT} if cuts_experts else frozenset())


@lru_cache(maxsize=MOST_KEPT_DIVISIONS)
def _cut_weight(
    same: ByIdentity[ModelSpec], layout: ShardLayout, policy: ShardingPolicy, block: int, parts: frozenset[Part]
) -> Weight | None:
    """Return a matrix of some parts of which a rank would hold a part of a block, or None."""
    for weight in (weight for layer in same.value.layers for weight in layer.weights):
        if weight.part not in parts or not weight.is_linear or weight.dim is None:
            continue
        own = _features(weight, checkpoint_tensor(weight, layout, policy))
        if own != _features(weight, weight.shape) and own % block:
            return weight
    return None


def _features(weight: Weight, shape: tuple[int, ...]) -> int:
    """Return the features along the divided dimension, of one of gate and up where a tensor holds both."""
    halves = 2 if weight.is_fused and weight.split is Split.COLUMN else 1
    return shape[weight.dim or 0] // halves
