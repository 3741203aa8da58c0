"""Alternating updates: several residual streams, of which a layer computes one and predicts the others.

Before the layer all streams are predicted from all; the layer works on the first;
what its output differs by from the prediction then corrects every stream. Beside
attention a narrow matrix pair, the learned augmented residual layer, adds its own.

Source: Baykal et al. 2023, arXiv:2301.13310 (AltUp); Menghani et al. 2024,
arXiv:2411.07501 (Laurel); `transformers` 5.23, modeling_gemma3n.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from plimsoll.planners.architecture.model import Block
from plimsoll.planners.architecture.operation import (
    Operation,
    OperationKind,
    Region,
    Tensor,
    add,
    matmul,
    norm,
    whole_matmul,
)
from plimsoll.planners.architecture.per_layer_input import PerLayerInput, per_layer_operations, per_layer_tensors
from plimsoll.planners.architecture.weight import Part, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternatingUpdates:
    """The sizes: `streams` of `hidden_size` features, and the narrow side of the augmented residual."""

    hidden_size: int
    streams: int
    residual_rank: int

    @property
    def width(self) -> int:
        """Return the features of all streams together."""
        return self.streams * self.hidden_size


def alternating_update_weights(prefix: str, size: AlternatingUpdates) -> tuple[Weight, ...]:
    """Return a layer's weights for its streams and for the augmented residual, whole on every rank."""
    hidden, streams, rank = size.hidden_size, size.streams, size.residual_rank
    return (
        Weight(name=f"{prefix}.altup.correct_output_scale", shape=(hidden,), part=Part.NORM),
        Weight(name=f"{prefix}.altup.router_norm.weight", shape=(hidden,), part=Part.NORM),
        _matrix(f"{prefix}.altup.modality_router.weight", (streams, hidden)),
        _matrix(f"{prefix}.altup.prediction_coefs.weight", (streams**2, streams)),
        _matrix(f"{prefix}.altup.correction_coefs.weight", (streams, streams)),
        _matrix(f"{prefix}.laurel.linear_left.weight", (rank, hidden)),
        _matrix(f"{prefix}.laurel.linear_right.weight", (hidden, rank)),
        Weight(name=f"{prefix}.laurel.post_laurel_norm.weight", shape=(hidden,), part=Part.NORM),
    )


def stream_projection_weights(name: str, size: AlternatingUpdates, part: Part) -> tuple[Weight, ...]:
    """Return one square matrix for each stream but the first."""
    shape = (size.hidden_size, size.hidden_size)
    return tuple(
        Weight(name=f"{name}.{stream}.weight", shape=shape, part=part, is_linear=True)
        for stream in range(size.streams - 1)
    )


def with_alternating_updates(layer: Block, size: AlternatingUpdates, per_layer: PerLayerInput) -> Block:
    """Return a layer of one stream as the layer of all; its own input corrects the streams it did not compute."""
    inner = _renamed(layer, {"residual": "active_prediction", "layer_output": "activated"})
    return dataclasses.replace(
        inner,
        tensors=(
            Tensor(name="residual", width=size.width),
            *inner.tensors,
            *_stream_tensors(size),
            *per_layer_tensors(per_layer),
        ),
        operations=(
            *_prediction(size),
            *_with_augmented_residual(inner.operations, size),
            *_correction(size),
            *per_layer_operations(per_layer, "corrected_first"),
            add("per_layer_add", "corrected", "per_layer_normed_output", "layer_output"),
        ),
    )


def with_stream_projections(block: Block, size: AlternatingUpdates) -> Block:
    """Return the embedding with every stream made from it, or the head with every stream folded into it."""
    tensors = tuple(
        dataclasses.replace(tensor, width=size.width) if tensor.name == "residual" else tensor
        for tensor in block.tensors
    )
    projection = matmul(
        "stream_projection",
        "residual",
        "residual",
        (size.hidden_size, size.hidden_size),
        region=Region.SEQUENCE,
        copies=size.streams - 1,
    )
    is_head = block.kind == "head"
    operations = (projection, *block.operations) if is_head else (*block.operations, projection)
    return dataclasses.replace(block, tensors=tensors, operations=operations)


def _stream_tensors(size: AlternatingUpdates) -> tuple[Tensor, ...]:
    hidden, streams = size.hidden_size, size.streams
    return (
        Tensor(name="prediction_router_input", width=hidden),
        Tensor(name="prediction_modalities", width=streams),
        Tensor(name="prediction_coefficients", width=streams**2),
        Tensor(name="predictions", width=size.width),
        Tensor(name="laurel_latent", width=size.residual_rank),
        Tensor(name="laurel_output", width=hidden),
        Tensor(name="laurel_normed_output", width=hidden),
        Tensor(name="activated", width=hidden),
        Tensor(name="correction_router_input", width=hidden),
        Tensor(name="correction_modalities", width=streams),
        Tensor(name="correction_coefficients", width=streams),
        Tensor(name="corrected", width=size.width),
        Tensor(name="corrected_first", width=hidden),
    )


def _prediction(size: AlternatingUpdates) -> tuple[Operation, ...]:
    streams = size.streams
    return (
        norm("prediction_router_norm", "residual", "prediction_router_input"),
        whole_matmul(
            "prediction_router", "prediction_router_input", "prediction_modalities", (size.hidden_size, streams)
        ),
        whole_matmul("prediction", "prediction_modalities", "prediction_coefficients", (streams, streams**2)),
        _mixing(
            "prediction_mixing", ("prediction_coefficients", "residual"), "predictions", 2.0 * streams * size.width
        ),
    )


def _correction(size: AlternatingUpdates) -> tuple[Operation, ...]:
    streams = size.streams
    return (
        norm("correction_router_norm", "activated", "correction_router_input"),
        whole_matmul(
            "correction_router", "correction_router_input", "correction_modalities", (size.hidden_size, streams)
        ),
        whole_matmul("correction", "correction_modalities", "correction_coefficients", (streams, streams)),
        _mixing("correction_mixing", ("correction_coefficients", "activated"), "corrected", 2.0 * size.width),
        _mixing("correction_scale", ("corrected",), "corrected_first", float(size.hidden_size)),
    )


def _with_augmented_residual(operations: tuple[Operation, ...], size: AlternatingUpdates) -> tuple[Operation, ...]:
    """Return the layer's operations with the narrow pair, which reads what attention reads, added after attention."""
    after = next(index for index, operation in enumerate(operations) if operation.name == "attention_add") + 1
    hidden, rank = size.hidden_size, size.residual_rank
    return (
        *operations[:after],
        whole_matmul("laurel_down", "attention_input", "laurel_latent", (hidden, rank)),
        whole_matmul("laurel_up", "laurel_latent", "laurel_output", (rank, hidden)),
        norm("laurel_norm", "laurel_output", "laurel_normed_output"),
        add("laurel_add", "middle_residual", "laurel_normed_output", "middle_residual"),
        *operations[after:],
    )


def _renamed(block: Block, names: dict[str, str]) -> Block:
    return dataclasses.replace(
        block,
        tensors=tuple(
            dataclasses.replace(tensor, name=names.get(tensor.name, tensor.name)) for tensor in block.tensors
        ),
        operations=tuple(
            dataclasses.replace(
                operation,
                inputs=tuple(names.get(name, name) for name in operation.inputs),
                output=names.get(operation.output, operation.output),
            )
            for operation in block.operations
        ),
    )


def _matrix(name: str, shape: tuple[int, int]) -> Weight:
    return Weight(name=name, shape=shape, part=Part.FEED_FORWARD, is_linear=True)


def _mixing(name: str, inputs: tuple[str, ...], output: str, flops: float) -> Operation:
    return Operation(
        name=name,
        kind=OperationKind.GATED_ACTIVATION,
        inputs=inputs,
        output=output,
        region=Region.SEQUENCE,
        fixed_flops_per_token=flops,
    )
