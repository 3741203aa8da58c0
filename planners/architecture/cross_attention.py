"""Cross attention: a decoder's queries over the keys and values of what an encoder made."""

from __future__ import annotations

import dataclasses

from plimsoll.planners.architecture.attention import GroupedAttention
from plimsoll.planners.architecture.decoder import Half
from plimsoll.planners.architecture.model import Block
from plimsoll.planners.architecture.operation import Operation, OperationKind, Region, Tensor, matmul, norm


def cross_attention_half(size: GroupedAttention) -> Half:
    """Return cross attention between equally long sequences (Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3).

    Every layer's keys and values come from the same encoder output, which is
    kept once: it has no width here, and whoever gives it out declares it.
    """
    return Half(tensors=_tensors(size), operations=_operations(size))


def with_encoder_output(block: Block, width: int) -> Block:
    """Return a decoder's first layer, which norms the encoder's output and keeps it for all."""
    tensors = tuple(tensor for tensor in block.tensors if tensor.name != "encoder_output")
    given = (Tensor(name="encoder_residual", width=width), Tensor(name="encoder_output", width=width))
    return dataclasses.replace(
        block,
        tensors=(*tensors, *given),
        operations=(norm("encoder_norm", "encoder_residual", "encoder_output"), *block.operations),
    )


def _tensors(size: GroupedAttention) -> tuple[Tensor, ...]:
    return (
        Tensor(name="cross_attention_input", width=size.hidden_size),
        Tensor(name="encoder_output", width=0),
        Tensor(name="cross_query", width=size.query_width, region=Region.TENSOR),
        Tensor(name="cross_key", width=size.key_value_width, region=Region.TENSOR),
        Tensor(name="cross_value", width=size.key_value_width, region=Region.TENSOR),
        Tensor(name="cross_context", width=size.query_width, region=Region.TENSOR),
        Tensor(name="cross_attention_output", width=size.hidden_size),
    )


def _operations(size: GroupedAttention) -> tuple[Operation, ...]:
    projections = tuple(
        matmul(f"{output}_projection", source, output, (size.hidden_size, width))
        for source, output, width in (
            ("cross_attention_input", "cross_query", size.query_width),
            ("encoder_output", "cross_key", size.key_value_width),
            ("encoder_output", "cross_value", size.key_value_width),
        )
    )
    core = Operation(
        name="cross_attention",
        kind=OperationKind.ATTENTION,
        inputs=("cross_query", "cross_key", "cross_value"),
        output="cross_context",
        heads=size.heads,
        key_dim=size.head_dim,
        value_dim=size.head_dim,
        is_bidirectional=True,
    )
    output = matmul(
        "cross_output_projection",
        "cross_context",
        "cross_attention_output",
        (size.query_width, size.hidden_size),
        is_row_parallel=True,
    )
    return (*projections, core, output)
