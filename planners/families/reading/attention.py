"""Grouped attention as nearly every family's config names its sizes, and its checkpoints its weights."""

from __future__ import annotations

import dataclasses
from enum import StrEnum

from plimsoll.planners.architecture.attention import GroupedAttention
from plimsoll.planners.architecture.weight import Part, Split, Weight
from plimsoll.planners.families.reading.config import ConfigReader


class QueryKeyNorm(StrEnum):
    """What normalizes queries and keys: nothing, each head's features, all heads' features together, a scale
    for each head and feature, or a norm of its own for each head."""

    NONE = "none"
    HEAD = "head"
    WIDTH = "width"
    EACH_HEAD = "each_head"
    OWN_NORMS = "own_norms"


def read_attention(
    config: ConfigReader, *, head_dim_default: int | None = None, key_value_heads_default: int | None = None
) -> GroupedAttention:
    """Return the attention's sizes under the names nearly every family uses.

    A config that leaves `num_key_value_heads` out has its class's default; one
    that says null has as many as query heads.
    """
    hidden_size = config.size("hidden_size")
    heads = config.size("num_attention_heads")
    left_out = config.is_left_out("num_key_value_heads")
    key_value_heads = config.size(
        "num_key_value_heads", default=(key_value_heads_default if left_out else None) or heads
    )
    config.must_divide("num_key_value_heads", key_value_heads, "num_attention_heads", heads)
    head_dim = config.given_size("head_dim") or head_dim_default
    if head_dim is None:
        config.must_divide("num_attention_heads", heads, "hidden_size", hidden_size)
        head_dim = hidden_size // heads
    return GroupedAttention(hidden_size=hidden_size, heads=heads, key_value_heads=key_value_heads, head_dim=head_dim)


def with_query_key_norm(size: GroupedAttention, kind: QueryKeyNorm) -> GroupedAttention:
    """Return the attention with the norms of queries and keys among its operations."""
    if kind is QueryKeyNorm.NONE:
        return size
    return dataclasses.replace(size, norms_query_key=True, norms_heads=kind is not QueryKeyNorm.WIDTH)


def query_key_norm_weights(prefix: str, size: GroupedAttention, kind: QueryKeyNorm) -> tuple[Weight, ...]:
    """Return q_norm and k_norm; those that stand over several heads are divided with the heads."""
    if kind is QueryKeyNorm.NONE:
        return ()
    weights: list[Weight] = []
    for short, heads in (("q", size.heads), ("k", size.key_value_heads)):
        if kind is QueryKeyNorm.OWN_NORMS:
            names = (f"{prefix}.{short}_layernorm.norms.{head}.weight" for head in range(heads))
            weights.extend(Weight(name=name, shape=(size.head_dim,), part=Part.NORM) for name in names)
            continue
        name = f"{prefix}.{short}_norm.weight"
        if kind is QueryKeyNorm.HEAD:
            weights.append(Weight(name=name, shape=(size.head_dim,), part=Part.NORM))
            continue
        shape = (heads * size.head_dim,) if kind is QueryKeyNorm.WIDTH else (heads, size.head_dim)
        weights.append(Weight(name=name, shape=shape, units=heads, part=Part.NORM, split=Split.COLUMN, dim=0))
    return tuple(weights)
