"""The feed-forward half of a layer: gated (SwiGLU, GeGLU) or plain (GELU, ReLU)."""

from __future__ import annotations

from plimsoll.planners.architecture.operation import Operation, OperationKind, Region, Tensor, matmul
from plimsoll.planners.architecture.weight import Part, Split, Weight


def gated_weights(
    prefix: str,
    hidden_size: int,
    intermediate_size: int,
    *,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    bias: bool = False,
    part: Part = Part.FEED_FORWARD,
) -> tuple[Weight, ...]:
    """Return gate, up and down, under the names of Llama-like checkpoints unless others are given."""
    weights: list[Weight] = []
    *firsts, last = names
    for first in firsts:
        name, shape = f"{prefix}.{first}", (intermediate_size, hidden_size)
        weights.append(feed_forward_column(f"{name}.weight", shape, dim=0, is_linear=True, part=part))
        if bias:
            weights.append(feed_forward_column(f"{name}.bias", (intermediate_size,), dim=0, part=part))
    weights.append(feed_forward_row(f"{prefix}.{last}.weight", (hidden_size, intermediate_size), dim=1, part=part))
    if bias:
        weights.append(Weight(name=f"{prefix}.{last}.bias", shape=(hidden_size,), part=part))
    return tuple(weights)


def fused_gated_weights(
    prefix: str,
    hidden_size: int,
    intermediate_size: int,
    *,
    names: tuple[str, str] = ("gate_up_proj", "down_proj"),
    part: Part = Part.FEED_FORWARD,
) -> tuple[Weight, ...]:
    """Return a matrix that holds gate and up one after the other, and the one after; `names` are both matrices'."""
    first, second = names
    fused = (2 * intermediate_size, hidden_size)
    return (
        feed_forward_column(f"{prefix}.{first}.weight", fused, dim=0, is_linear=True, part=part),
        feed_forward_row(f"{prefix}.{second}.weight", (hidden_size, intermediate_size), dim=1, part=part),
    )


def plain_weights(
    prefix: str,
    hidden_size: int,
    intermediate_size: int,
    *,
    names: tuple[str, str],
    bias: bool,
    part: Part = Part.FEED_FORWARD,
) -> tuple[Weight, ...]:
    """Return the two matrices of a feed-forward without a gate."""
    first, second = names
    weights = [
        feed_forward_column(
            f"{prefix}.{first}.weight", (intermediate_size, hidden_size), dim=0, is_linear=True, part=part
        ),
        feed_forward_row(f"{prefix}.{second}.weight", (hidden_size, intermediate_size), dim=1, part=part),
    ]
    if bias:
        weights.append(feed_forward_column(f"{prefix}.{first}.bias", (intermediate_size,), dim=0, part=part))
        weights.append(Weight(name=f"{prefix}.{second}.bias", shape=(hidden_size,), part=part))
    return tuple(weights)


def feed_forward_column(
    name: str, shape: tuple[int, ...], *, dim: int, is_linear: bool = False, part: Part = Part.FEED_FORWARD
) -> Weight:
    """Return a weight whose output features (along `dim`) are divided."""
    return Weight(name=name, shape=shape, part=part, split=Split.COLUMN, dim=dim, is_linear=is_linear)


def feed_forward_row(name: str, shape: tuple[int, ...], *, dim: int, part: Part = Part.FEED_FORWARD) -> Weight:
    """Return a matrix whose input features (along `dim`) are divided."""
    return Weight(name=name, shape=shape, part=part, split=Split.ROW, dim=dim, is_linear=True)


def feed_forward_tensors(hidden_size: int, intermediate_size: int, *, gated: bool) -> tuple[Tensor, ...]:
    """Return the activations between the feed-forward's norm and its output."""
    inner = ("feed_forward_gate", "feed_forward_up") if gated else ("feed_forward_inner",)
    return (
        Tensor(name="feed_forward_input", width=hidden_size),
        *(Tensor(name=name, width=intermediate_size, region=Region.TENSOR) for name in inner),
        Tensor(name="feed_forward_product", width=intermediate_size, region=Region.TENSOR),
        Tensor(name="feed_forward_output", width=hidden_size),
    )


def feed_forward_operations(hidden_size: int, intermediate_size: int, *, gated: bool) -> tuple[Operation, ...]:
    """Return the first matrices, the non-linearity and the second matrix."""
    operations = gated_operations if gated else plain_operations
    return operations("feed_forward", "feed_forward_input", "feed_forward_output", hidden_size, intermediate_size)


def plain_operations(
    prefix: str, source: str, output: str, hidden_size: int, intermediate_size: int, *, copies: int = 1
) -> tuple[Operation, ...]:
    """Return the operations of a feed-forward without a gate, done `copies` times for each token."""
    return (
        matmul(
            f"{prefix}_inner_projection", source, f"{prefix}_inner", (hidden_size, intermediate_size), copies=copies
        ),
        Operation(
            name=f"{prefix}_activation",
            kind=OperationKind.ACTIVATION,
            inputs=(f"{prefix}_inner",),
            output=f"{prefix}_product",
        ),
        matmul(
            f"{prefix}_down_projection",
            f"{prefix}_product",
            output,
            (intermediate_size, hidden_size),
            is_row_parallel=True,
            copies=copies,
        ),
    )


def gated_operations(
    prefix: str, source: str, output: str, hidden_size: int, intermediate_size: int, *, copies: int = 1
) -> tuple[Operation, ...]:
    """Return gate, up, the gated activation and down, their tensors named after `prefix`.

    The matrices are multiplied `copies` times for each token.
    """
    first = tuple(
        matmul(
            f"{prefix}_{name}_projection", source, f"{prefix}_{name}", (hidden_size, intermediate_size), copies=copies
        )
        for name in ("gate", "up")
    )
    activation = Operation(
        name=f"{prefix}_activation",
        kind=OperationKind.GATED_ACTIVATION,
        inputs=(f"{prefix}_gate", f"{prefix}_up"),
        output=f"{prefix}_product",
    )
    second = matmul(
        f"{prefix}_down_projection",
        f"{prefix}_product",
        output,
        (intermediate_size, hidden_size),
        is_row_parallel=True,
        copies=copies,
    )
    return (*first, activation, second)
