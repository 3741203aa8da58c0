"""Checkpoints with one scale per block of a matrix, whose feed-forward layers engines divide between blocks only."""

from __future__ import annotations

from functools import lru_cache

from plimsoll.planners.architecture import ModelSpec, Part, Split, Weight
from plimsoll.planners.ground.errors import ImpossibleLayout
from plimsoll.planners.ground.identity import Same
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.cards import is_amd
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.engine import is_older
from plimsoll.planners.serving.weights import policy_of
from plimsoll.planners.sharding import ShardingPolicy, ShardLayout
from plimsoll.planners.sharding.weights import checkpoint_tensor, is_expert

# vllm/model_executor/layers/quantization/fp8.py and sglang/srt/layers/quantization/fp8.py, create_weights: "The
# output_size of gate's and up's weight = 192 is not divisible by weight quantization block_n = 128", and the same of
# linear layers. From 0.29 on vLLM splits the experts' scales finer or pads the experts
# (fused_moe/oracle/fp8.py, resolve_fp8_moe_weight_block_shape).
FITS_EXPERTS = "0.29"
BLOCK_FORMAT = "fp8"
FEED_FORWARD = frozenset({Part.FEED_FORWARD, Part.EXPERT, Part.SHARED_EXPERT})
MOST_KEPT_DIVISIONS = 4096


def block_obstacle(question: ServingQuestion, degrees: Degrees, version: str) -> ImpossibleLayout | None:
    """Return why a version of the engine does not load the checkpoint so divided, or None."""
    block = question.scale_block
    if block is None or question.weights != BLOCK_FORMAT:
        return None
    parts = _checked_parts(question, version)
    weight = _cut_weight(Same(question.model), degrees.shard_layout, policy_of(question.engine), block, parts)
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
        rule="scale-blocks-divide",
        pointer="/layout/tensor_parallel",
    )


def _checked_parts(question: ServingQuestion, version: str) -> frozenset[Part]:
    """Return the parts of a model of which the engine asks that every rank holds whole blocks."""
    if question.engine == "vllm":
        return FEED_FORWARD if is_older(version, FITS_EXPERTS) else FEED_FORWARD - {Part.EXPERT}
    # sglang computes with other kernels on AMD's GPUs, and takes DeepSeek's shared experts among the others.
    if question.engine == "sglang" and not is_amd(question.hardware.gpu):
        return FEED_FORWARD - {Part.SHARED_EXPERT}
    return frozenset()


@lru_cache(maxsize=MOST_KEPT_DIVISIONS)
def _cut_weight(
    same: Same[ModelSpec], layout: ShardLayout, policy: ShardingPolicy, block: int, parts: frozenset[Part]
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
