"""Checkpoints with one scale per block of a matrix, whose feed-forward layers engines divide between blocks only."""

from __future__ import annotations

from functools import lru_cache

from planners.architecture import ModelSpec, Part, Split, Weight
from planners.errors import ImpossibleLayout
from planners.identity import Same
from planners.questions import ServingQuestion
from planners.serving.cards import compute_capability
from planners.serving.degrees import Degrees
from planners.serving.weights import policy_of
from planners.sharding import ShardingPolicy, ShardLayout
from planners.sharding.weights import checkpoint_tensor, is_expert

# vllm/model_executor/layers/quantization/fp8.py and sglang/srt/layers/quantization/fp8.py, create_weights: "The
# output_size of gate's and up's weight = 192 is not divisible by weight quantization block_n = 128", and the same of
# linear layers.
ENGINES = ("vllm", "sglang")
BLOCK_FORMAT = "fp8"
FEED_FORWARD = frozenset({Part.FEED_FORWARD, Part.EXPERT, Part.SHARED_EXPERT})
# vLLM pads the experts for TensorRT-LLM's kernels, its own choice on Blackwell with NVLink (pull request 55867).
PADDED_CAPABILITIES = (10.0, 11.0)
MOST_KEPT_DIVISIONS = 4096


def block_obstacle(question: ServingQuestion, degrees: Degrees) -> ImpossibleLayout | None:
    """Return why the engine does not load the checkpoint so divided, or None."""
    block = question.scale_block
    if block is None or question.weights != BLOCK_FORMAT or question.engine not in ENGINES or _pads(question):
        return None
    weight = _cut_weight(Same(question.model), degrees.shard_layout, policy_of(question.engine), block)
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


def _pads(question: ServingQuestion) -> bool:
    capability = compute_capability(question.hardware.gpu)
    least, beyond = PADDED_CAPABILITIES
    return question.engine == "vllm" and capability is not None and least <= capability < beyond


@lru_cache(maxsize=MOST_KEPT_DIVISIONS)
def _cut_weight(same: Same[ModelSpec], layout: ShardLayout, policy: ShardingPolicy, block: int) -> Weight | None:
    """Return a feed-forward matrix of which a rank would hold a part of a block, or None."""
    for weight in (weight for layer in same.value.layers for weight in layer.weights):
        if weight.part not in FEED_FORWARD or not weight.is_linear or weight.dim is None:
            continue
        own = _features(weight, checkpoint_tensor(weight, layout, policy))
        if own != _features(weight, weight.shape) and own % block:
            return weight
    return None


def _features(weight: Weight, shape: tuple[int, ...]) -> int:
    """Return the features along the divided dimension, of one of gate and up where a tensor holds both."""
    halves = 2 if weight.is_fused and weight.split is Split.COLUMN else 1
    return shape[weight.dim or 0] // halves
