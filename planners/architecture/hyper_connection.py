"""Hyper-connections: several residual streams, mixed before and after each half of a layer.

Each half reads a weighted sum of the streams and adds its output to all of
them, which are mixed with one another on the way; all these weights are computed
from the streams themselves.

Source: DeepSeek-V4's report, section 2.2, and `transformers` 5.23,
modeling_deepseek_v4 (manifold-constrained hyper-connections).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from plimsoll.planners.architecture.decoder import Half
from plimsoll.planners.architecture.model import Block
from plimsoll.planners.architecture.operation import (
    Operation,
    OperationKind,
    Region,
    Tensor,
    norm,
    whole_matmul,
)
from plimsoll.planners.architecture.sequence_state import KvState
from plimsoll.planners.architecture.weight import Part, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperConnection:
    """The residual streams of a model: `streams` of `hidden_size` features."""

    hidden_size: int
    streams: int

    @property
    def width(self) -> int:
        """Return the features of all streams together."""
        return self.streams * self.hidden_size

    @property
    def coefficients(self) -> int:
        """Return the weights of one half: streams into it, out of it, and each stream into each."""
        return (2 + self.streams) * self.streams


def hyper_connection_weights(prefix: str, size: HyperConnection) -> tuple[Weight, ...]:
    """Return what computes one half's coefficients, with a scale for each of their three kinds."""
    return _coefficient_weights(prefix, size.coefficients, size.width, scales=3)


def collapse_weights(prefix: str, size: HyperConnection) -> tuple[Weight, ...]:
    """Return what computes the weights with which the streams become one before the head."""
    return _coefficient_weights(prefix, size.streams, size.width, scales=1)


def hyper_connected_layer(
    size: HyperConnection,
    *,
    layers: tuple[int, ...],
    mixer: Half,
    feed_forward: Half,
    weights: tuple[Weight, ...],
    kv: KvState,
    kind: str,
) -> Block:
    """Return a layer whose halves read from and write to all streams."""
    tensors = [Tensor(name="residual", width=size.width), Tensor(name="middle_residual", width=size.width)]
    operations: list[Operation] = []
    steps = (("attention", mixer, "residual", "middle_residual"),
             ("feed_forward", feed_forward, "middle_residual", "layer_output"))  # fmt: skip
    for name, half, source, total in steps:
        tensors.extend(_tensors(name, size, size.coefficients))
        tensors.extend(half.tensors)
        operations.extend(_collapse(name, source, size, size.coefficients))
        operations.append(norm(f"{name}_norm", f"{name}_collapsed", f"{name}_input"))
        operations.extend(half.operations)
        operations.append(
            Operation(
                name=f"{name}_mixing",
                kind=OperationKind.GATED_ACTIVATION,
                inputs=(f"{name}_coefficients", source, f"{name}_output"),
                output=total,
                region=Region.SEQUENCE,
                # Each stream is a weighted sum of all streams and of the half's output.
                fixed_flops_per_token=2.0 * (size.streams + 1) * size.width,
            )
        )
    return Block(kind=kind, layers=layers, weights=weights, tensors=tuple(tensors), operations=tuple(operations), kv=kv)


def with_streams(embedding: Block, size: HyperConnection) -> Block:
    """Return the embedding with its output copied into every stream."""
    tensors = tuple(
        dataclasses.replace(tensor, width=size.width) if tensor.name == "residual" else tensor
        for tensor in embedding.tensors
    )
    return dataclasses.replace(embedding, tensors=tensors)


def with_collapse(head: Block, size: HyperConnection, weights: tuple[Weight, ...]) -> Block:
    """Return the head with the streams made one before its norm."""
    tensors = [tensor for tensor in head.tensors if tensor.name != "residual"]
    operations = (
        dataclasses.replace(operation, inputs=("head_collapsed",)) if "residual" in operation.inputs else operation
        for operation in head.operations
    )
    return dataclasses.replace(
        head,
        weights=(*head.weights, *weights),
        tensors=(Tensor(name="residual", width=size.width), *_tensors("head", size, size.streams), *tensors),
        operations=(*_collapse("head", "residual", size, size.streams), *operations),
    )


def _coefficient_weights(prefix: str, outputs: int, inputs: int, *, scales: int) -> tuple[Weight, ...]:
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = (
        ("fn", (outputs, inputs)), ("base", (outputs,)), ("scale", (scales,)),
    )  # fmt: skip
    return tuple(Weight(name=f"{prefix}_{name}", shape=shape, part=Part.NORM) for name, shape in shapes)


def _tensors(name: str, size: HyperConnection, coefficients: int) -> Iterator[Tensor]:
    yield Tensor(name=f"{name}_normed_streams", width=size.width)
    yield Tensor(name=f"{name}_coefficients", width=coefficients)
    yield Tensor(name=f"{name}_collapsed", width=size.hidden_size)


def _collapse(name: str, source: str, size: HyperConnection, coefficients: int) -> Iterator[Operation]:
    yield norm(f"{name}_streams_norm", source, f"{name}_normed_streams")
    yield whole_matmul(
        f"{name}_coefficients_projection", f"{name}_normed_streams", f"{name}_coefficients", (size.width, coefficients)
    )
    yield Operation(
        name=f"{name}_collapse",
        kind=OperationKind.GATED_ACTIVATION,
        inputs=(f"{name}_coefficients", source),
        output=f"{name}_collapsed",
        region=Region.SEQUENCE,
        fixed_flops_per_token=2.0 * size.width,
    )
