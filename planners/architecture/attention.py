"""Softmax attention with multi-head, grouped or multi-query keys and values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from planners.architecture.operation import Operation, OperationKind, Region, Tensor
from planners.architecture.sequence_state import KvKind, KvState
from planners.architecture.weight import Part, Split, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedAttention:
    """The sizes of one attention layer.

    `key_value_heads` equal to `heads` is multi-head attention, one is
    multi-query attention. `window` limits how far back a token looks.
    """

    hidden_size: int
    heads: int
    key_value_heads: int
    head_dim: int
    window: int | None = None
    has_rotary: bool = True

    @property
    def query_width(self) -> int:
        """Return the features of all query heads together."""
        return self.heads * self.head_dim

    @property
    def key_value_width(self) -> int:
        """Return the features of all keys (or all values) together."""
        return self.key_value_heads * self.head_dim

    def with_window(self, window: int | None) -> GroupedAttention:
        """Return the same attention looking back over `window` tokens, or over all when None."""
        return dataclasses.replace(self, window=window)

    def kv_state(self) -> KvState:
        """Return what one such layer caches of the sequence."""
        kind = KvKind.SLIDING_WINDOW if self.window else KvKind.FULL_ATTENTION
        return KvState(kind=kind, heads=self.key_value_heads, head_dim=self.head_dim, window=self.window)


def separate_projections(
    prefix: str, size: GroupedAttention, *, qkv_bias: bool, output_bias: bool, output_name: str = "o_proj"
) -> tuple[Weight, ...]:
    """Return q_proj, k_proj, v_proj and the output projection as Llama-like checkpoints name them."""
    weights: list[Weight] = []
    for short, width, units in (
        ("q", size.query_width, size.heads),
        ("k", size.key_value_width, size.key_value_heads),
        ("v", size.key_value_width, size.key_value_heads),
    ):
        name = f"{prefix}.{short}_proj"
        weights.append(column(f"{name}.weight", (width, size.hidden_size), units, is_linear=True))
        if qkv_bias:
            weights.append(column(f"{name}.bias", (width,), units))
    weights.append(output_projection(f"{prefix}.{output_name}.weight", size))
    if output_bias:
        weights.append(Weight(name=f"{prefix}.{output_name}.bias", shape=(size.hidden_size,), part=Part.ATTENTION))
    return tuple(weights)


def output_projection(name: str, size: GroupedAttention) -> Weight:
    """Return the matrix from all heads back to the hidden size, its input divided by head."""
    return Weight(
        name=name,
        shape=(size.hidden_size, size.query_width),
        part=Part.ATTENTION,
        split=Split.ROW,
        dim=1,
        units=size.heads,
        is_linear=True,
    )


def column(name: str, shape: tuple[int, ...], units: int, *, is_linear: bool = False) -> Weight:
    """Return an attention weight whose first dimension is divided by head."""
    return Weight(
        name=name, shape=shape, part=Part.ATTENTION, split=Split.COLUMN, dim=0, units=units, is_linear=is_linear
    )


def attention_tensors(size: GroupedAttention) -> tuple[Tensor, ...]:
    """Return the activations between the attention's norm and its output."""
    return (
        Tensor(name="attention_input", width=size.hidden_size),
        Tensor(name="query", width=size.query_width, region=Region.TENSOR),
        Tensor(name="key", width=size.key_value_width, region=Region.TENSOR),
        Tensor(name="value", width=size.key_value_width, region=Region.TENSOR),
        Tensor(name="attention_context", width=size.query_width, region=Region.TENSOR),
        Tensor(name="attention_output", width=size.hidden_size),
    )


def attention_operations(size: GroupedAttention) -> tuple[Operation, ...]:
    """Return projections, the attention itself and the output projection."""
    projections = tuple(
        Operation(
            name=f"{name}_projection",
            kind=OperationKind.MATMUL,
            inputs=("attention_input",),
            output=name,
            matmul_shape=(size.hidden_size, width),
        )
        for name, width in (
            ("query", size.query_width),
            ("key", size.key_value_width),
            ("value", size.key_value_width),
        )
    )
    rotary = (
        (Operation(name="rotary", kind=OperationKind.ROTARY, inputs=("query", "key"), output="query"),)
        if size.has_rotary
        else ()
    )
    core = Operation(
        name="attention",
        kind=OperationKind.ATTENTION,
        inputs=("query", "key", "value"),
        output="attention_context",
        heads=size.heads,
        key_dim=size.head_dim,
        value_dim=size.head_dim,
        window=size.window,
    )
    output = Operation(
        name="output_projection",
        kind=OperationKind.MATMUL,
        inputs=("attention_context",),
        output="attention_output",
        matmul_shape=(size.query_width, size.hidden_size),
        is_row_parallel=True,
    )
    return (*projections, *rotary, core, output)
