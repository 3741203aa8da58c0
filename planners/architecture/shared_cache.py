"""Attention to keys and values that an earlier layer computed and caches.

Source: Brandon et al. 2024, arXiv:2405.12981 (cross-layer attention).
"""

from __future__ import annotations

import dataclasses

from plimsoll.planners.architecture.attention import (
    GroupedAttention,
    attention_operations,
    attention_tensors,
    column,
    output_projection,
)
from plimsoll.planners.architecture.decoder import Half
from plimsoll.planners.architecture.weight import Part, Weight

BORROWED = frozenset({"key", "value"})


def shared_cache_half(size: GroupedAttention) -> Half:
    """Return attention without projections for keys and values, which the earlier layer keeps and counts."""
    return Half(
        tensors=tuple(
            dataclasses.replace(tensor, width=0) if tensor.name in BORROWED else tensor
            for tensor in attention_tensors(size)
        ),
        operations=tuple(
            operation
            for operation in attention_operations(size)
            if operation.name not in {f"{name}_projection" for name in BORROWED}
        ),
    )


def shared_cache_weights(prefix: str, size: GroupedAttention, *, bias: bool) -> tuple[Weight, ...]:
    """Return the query's and the output's matrices, and the norm of each query head."""
    hidden_size, heads = size.hidden_size, size.heads
    query_bias = (column(f"{prefix}.q_proj.bias", (size.query_width,), heads),) if bias else ()
    output_bias = (Weight(name=f"{prefix}.o_proj.bias", shape=(hidden_size,), part=Part.ATTENTION),) if bias else ()
    return (
        column(f"{prefix}.q_proj.weight", (size.query_width, hidden_size), heads, is_linear=True),
        *query_bias,
        output_projection(f"{prefix}.o_proj.weight", size),
        *output_bias,
        Weight(name=f"{prefix}.q_norm.weight", shape=(size.head_dim,), part=Part.NORM),
    )
