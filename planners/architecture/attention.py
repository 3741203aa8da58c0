"""Softmax attention with multi-head, grouped or multi-query keys and values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from plimsoll.planners.architecture.operation import Operation, OperationKind, Region, Tensor, matmul
from plimsoll.planners.architecture.sequence_state import KvKind, KvState
from plimsoll.planners.architecture.weight import Part, Split, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedAttention:
    """The sizes of one attention layer.

    `key_value_heads` equal to `heads` is multi-head attention, one is
    multi-query attention. `window` limits how far back a token looks; when
    `is_chunked` it looks back to the beginning of its chunk of `window` tokens
    (Llama 4). `value_head_dim` is a value head's features where they differ from
    the key's (MiMo-V2). With `has_output_gate` each head's query comes with as many
    features that gate what the head gathered (Qwen3-Next; Qiu et al. 2025, arXiv:2505.06708).
    When `is_bidirectional` a token attends to the whole sequence, as in an encoder.
    With `norms_query_key` queries and keys are normalized before they are rotated, head by head with `norms_heads`
    and else over their whole width. `rotation_concatenates`: see `Operation.concatenates`; `has_sinks`: see
    `Operation.has_sinks`.
    """

    hidden_size: int
    heads: int
    key_value_heads: int
    head_dim: int
    window: int | None = None
    has_rotary: bool = True
    is_chunked: bool = False
    value_head_dim: int | None = None
    has_output_gate: bool = False
    is_bidirectional: bool = False
    norms_query_key: bool = False
    norms_heads: bool = False
    rotation_concatenates: bool = False
    has_sinks: bool = False

    @property
    def query_width(self) -> int:
        """Return the features of all query heads together."""
        return self.heads * self.head_dim

    @property
    def query_projection_width(self) -> int:
        """Return the features that the query's matrix puts out, the output gate's included."""
        return self.query_width * (2 if self.has_output_gate else 1)

    @property
    def key_value_width(self) -> int:
        """Return the features of all keys together, and of all values unless `value_head_dim` is given."""
        return self.key_value_heads * self.head_dim

    @property
    def value_dim(self) -> int:
        """Return the features of one value head."""
        return self.head_dim if self.value_head_dim is None else self.value_head_dim

    @property
    def value_width(self) -> int:
        """Return the features of all values together."""
        return self.key_value_heads * self.value_dim

    @property
    def context_width(self) -> int:
        """Return the features of what all heads gather, the input of the output projection."""
        return self.heads * self.value_dim

    def with_window(self, window: int | None) -> GroupedAttention:
        """Return the same attention looking back over `window` tokens, or over all when None."""
        return dataclasses.replace(self, window=window)

    def kv_state(self) -> KvState:
        """Return what one such layer caches of the sequence."""
        kind = KvKind.FULL_ATTENTION
        if self.window:
            kind = KvKind.CHUNKED_LOCAL if self.is_chunked else KvKind.SLIDING_WINDOW
        return KvState(
            kind=kind,
            heads=self.key_value_heads,
            head_dim=self.head_dim,
            value_dim=self.value_head_dim,
            window=self.window,
        )

    def cross_state(self, source_tokens: int | None = None) -> KvState:
        """Return what one such layer caches of an encoder's output."""
        return KvState(
            kind=KvKind.CROSS_ATTENTION,
            heads=self.key_value_heads,
            head_dim=self.head_dim,
            value_dim=self.value_head_dim,
            source_tokens=source_tokens,
        )


def separate_projections(
    prefix: str, size: GroupedAttention, *, qkv_bias: bool, output_bias: bool, output_name: str = "o_proj"
) -> tuple[Weight, ...]:
    """Return q_proj, k_proj, v_proj and the output projection as Llama-like checkpoints name them."""
    weights: list[Weight] = []
    for short, width, units in (
        ("q", size.query_projection_width, size.heads),
        ("k", size.key_value_width, size.key_value_heads),
        ("v", size.value_width, size.key_value_heads),
    ):
        name = f"{prefix}.{short}_proj"
        weights.append(column(f"{name}.weight", (width, size.hidden_size), units, is_linear=True))
        if qkv_bias:
            weights.append(column(f"{name}.bias", (width,), units))
    weights.append(output_projection(f"{prefix}.{output_name}.weight", size))
    if output_bias:
        weights.append(Weight(name=f"{prefix}.{output_name}.bias", shape=(size.hidden_size,), part=Part.ATTENTION))
    return tuple(weights)


def query_key_value_weights(names: tuple[str, ...], size: GroupedAttention, *, bias: bool) -> tuple[Weight, ...]:
    """Return queries, keys and values as three matrices, or as one where `names` has one name.

    A fused matrix is split by what it holds: query heads and key-value heads
    each on their own, in whatever order the checkpoint has them.
    """
    parts = (
        (size.query_width, size.heads),
        (size.key_value_width, size.key_value_heads),
        (size.key_value_width, size.key_value_heads),
    )
    if len(names) > 1:
        return tuple(
            weight
            for name, (width, units) in zip(names, parts, strict=True)
            for weight in (
                column(f"{name}.weight", (width, size.hidden_size), units, is_linear=True),
                *((column(f"{name}.bias", (width,), units),) if bias else ()),
            )
        )
    width = sum(length for length, _ in parts)
    shapes = {"weight": (width, size.hidden_size), **({"bias": (width,)} if bias else {})}
    return tuple(
        Weight(
            name=f"{names[0]}.{kind}",
            shape=shape,
            part=Part.ATTENTION,
            split=Split.COLUMN,
            dim=0,
            units=size.heads,
            sections=parts,
            is_linear=kind == "weight",
        )
        for kind, shape in shapes.items()
    )


def sink_weight(name: str, size: GroupedAttention) -> Weight:
    """Return the logits, one a head, that let a head attend to nothing (StreamingLLM, arXiv:2309.17453; gpt-oss)."""
    return column(name, (size.heads,), size.heads)


def output_projection(name: str, size: GroupedAttention) -> Weight:
    """Return the matrix from all heads back to the hidden size, its input divided by head."""
    return row(name, (size.hidden_size, size.context_width), size.heads)


def column(name: str, shape: tuple[int, ...], units: int, *, is_linear: bool = False) -> Weight:
    """Return an attention weight whose first dimension is divided by head."""
    return Weight(
        name=name, shape=shape, part=Part.ATTENTION, split=Split.COLUMN, dim=0, units=units, is_linear=is_linear
    )


def row(name: str, shape: tuple[int, int], units: int) -> Weight:
    """Return an attention's matrix whose input features are divided by head."""
    return Weight(name=name, shape=shape, part=Part.ATTENTION, split=Split.ROW, dim=1, units=units, is_linear=True)


def attention_tensors(size: GroupedAttention) -> tuple[Tensor, ...]:
    """Return the activations between the attention's norm and its output."""
    gate = (
        Tensor(name="attention_gate", width=size.query_width, region=Region.TENSOR),
        Tensor(name="gated_context", width=size.context_width, region=Region.TENSOR),
    )
    raw = (
        Tensor(name="raw_query", width=size.query_width, region=Region.TENSOR),
        Tensor(name="raw_key", width=size.key_value_width, region=Region.TENSOR),
    )
    return (
        Tensor(name="attention_input", width=size.hidden_size),
        *(raw if size.norms_query_key else ()),
        Tensor(name="query", width=size.query_width, region=Region.TENSOR),
        Tensor(name="key", width=size.key_value_width, region=Region.TENSOR),
        Tensor(name="value", width=size.value_width, region=Region.TENSOR),
        Tensor(name="attention_context", width=size.context_width, region=Region.TENSOR),
        *(gate if size.has_output_gate else ()),
        Tensor(name="attention_output", width=size.hidden_size),
    )


def attention_operations(size: GroupedAttention) -> tuple[Operation, ...]:
    """Return projections, the attention itself and the output projection."""
    projections = tuple(
        matmul(
            f"{name}_projection",
            "attention_input",
            f"raw_{name}" if size.norms_query_key and name != "value" else name,
            (size.hidden_size, width),
        )
        for name, width in (
            ("query", size.query_projection_width),
            ("key", size.key_value_width),
            ("value", size.value_width),
        )
    )
    rotary = Operation(
        name="rotary",
        kind=OperationKind.ROTARY,
        inputs=("query", "key"),
        output="query",
        concatenates=size.rotation_concatenates,
    )
    core = Operation(
        name="attention",
        kind=OperationKind.ATTENTION,
        inputs=("query", "key", "value"),
        output="attention_context",
        heads=size.heads,
        key_dim=size.head_dim,
        value_dim=size.value_dim,
        window=size.window,
        is_chunked=size.is_chunked,
        is_bidirectional=size.is_bidirectional,
        has_sinks=size.has_sinks,
    )
    gating = Operation(
        name="attention_gating",
        kind=OperationKind.GATED_ACTIVATION,
        inputs=("attention_gate", "attention_context"),
        output="gated_context",
    )
    output = matmul(
        "output_projection",
        "gated_context" if size.has_output_gate else "attention_context",
        "attention_output",
        (size.context_width, size.hidden_size),
        is_row_parallel=True,
    )
    return (
        *projections,
        *(_query_key_norms(size) if size.norms_query_key else ()),
        *((rotary,) if size.has_rotary else ()),
        core,
        *((gating,) if size.has_output_gate else ()),
        output,
    )


def _query_key_norms(size: GroupedAttention) -> tuple[Operation, ...]:
    """Return the norms of queries and keys."""
    return tuple(
        Operation(
            name=f"{name}_norm",
            kind=OperationKind.NORM,
            inputs=(f"raw_{name}",),
            output=name,
            heads=heads if size.norms_heads else 0,
        )
        for name, heads in (("query", size.heads), ("key", size.key_value_heads))
    )
