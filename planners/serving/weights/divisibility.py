"""Whether weights can be divided over so many ranks, and the degrees that can."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from plimsoll.planners.architecture import ModelSpec, Split
from plimsoll.planners.ground.errors import BrokenRule, ImpossibleLayout
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.weights.placement import policy_of
from plimsoll.planners.sharding import ShardingPolicy, ShardLayout
from plimsoll.planners.sharding.weights import checkpoint_tensor, expert_span, is_expert

# Divisions of models that later questions and other layouts ask for again.
MOST_KEPT_RANKS = 4096


def layout_obstacle(model: ModelSpec, degrees: Degrees, *, engine: str) -> ImpossibleLayout | None:
    """Return why the engine cannot divide the model so, or None."""
    broken = _broken_rule(ByIdentity(model), degrees.shard_layout, policy_of(engine))
    return None if broken is None else ImpossibleLayout(broken.detail, rule=broken.rule, pointer=broken.pointer)


@lru_cache(maxsize=MOST_KEPT_RANKS)
def _broken_rule(same: ByIdentity[ModelSpec], layout: ShardLayout, policy: ShardingPolicy) -> BrokenRule | None:
    """Return the rule that a division of the weights breaks, or None; pipelines share it."""
    model, tensor = same.value, layout.tensor_parallel
    obstacle = tensor_parallel_obstacle(model, tensor)
    if obstacle is not None:
        return BrokenRule(
            rule="tensor-parallel-divides",
            detail=f"tensor_parallel {tensor} is impossible: {obstacle} Possible: {_possible_degrees(model, policy)}.",
            pointer="/layout/tensor_parallel",
        )
    if (uneven := _uneven_vocabulary(model, tensor, policy)) is not None:
        return BrokenRule(
            rule="vocabulary-divides",
            detail=f"tensor_parallel {tensor} is impossible: {uneven} Possible: {_possible_degrees(model, policy)}.",
            pointer="/layout/tensor_parallel",
        )
    try:
        for weight in (weight for block in model.layers for weight in block.weights if is_expert(weight)):
            checkpoint_tensor(weight, layout, policy)
            expert_span(weight.experts, layout.expert_parallel, 0, policy)
    except ImpossibleLayout as impossible:
        return replace(impossible.broken[0], rule="experts-divide")
    return None


def _possible_degrees(model: ModelSpec, policy: ShardingPolicy) -> str:
    """Return the tensor-parallel degrees of a model, as a person lists them."""
    most = most_tensor_parallel(model)
    degrees = [
        str(degree)
        for degree in range(1, most + 1)
        if most % degree == 0
        and tensor_parallel_obstacle(model, degree) is None
        and _uneven_vocabulary(model, degree, policy) is None
    ]
    return " or ".join(filter(None, (", ".join(degrees[:-1]), degrees[-1])))


def most_tensor_parallel(model: ModelSpec) -> int:
    """Return the largest tensor-parallel degree: a head per rank or, of a model without attention, a feature."""
    return model.attention_heads or model.hidden_size


def _uneven_vocabulary(model: ModelSpec, tensor_parallel: int, policy: ShardingPolicy) -> str | None:
    """Return what is uneven of the vocabulary's rows where the engine pads them to whole units and no further."""
    if not policy.vocabulary_multiple or policy.pads_uneven_vocabulary:
        return None
    for weight in (weight for block in model.blocks for weight in block.weights):
        if weight.dim is not None and weight.split is Split.VOCABULARY and not is_expert(weight):
            rows = policy.vocabulary_rows(weight.shape[weight.dim], 1)
            if rows % tensor_parallel:
                return f"{rows} rows of {weight.name} do not divide by {tensor_parallel}."
    return None


def tensor_parallel_obstacle(model: ModelSpec, tensor_parallel: int) -> str | None:
    """Return why the weights that are no expert's cannot be divided over so many ranks, the vocabulary apart."""
    if model.attention_heads % tensor_parallel:
        return f"{model.attention_heads} attention heads do not divide by {tensor_parallel}."
    kv_heads = model.key_value_heads
    if kv_heads % tensor_parallel and tensor_parallel % kv_heads:
        return f"{kv_heads} key-value heads neither divide by {tensor_parallel} nor divide it."
    for weight in (weight for block in model.blocks for weight in block.weights):
        if weight.dim is None or weight.units or weight.sections or is_expert(weight):
            continue
        length = weight.shape[weight.dim]
        if weight.split is not Split.VOCABULARY and length % tensor_parallel:
            return f"dimension {length} of {weight.name} does not divide by {tensor_parallel}."
    return None
