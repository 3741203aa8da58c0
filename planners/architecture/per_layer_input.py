"""Per-layer inputs: each token is embedded once more for every layer, which takes its own in after its halves.

Source: `transformers` 5.23, modeling_gemma4 and modeling_gemma3n.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from plimsoll.planners.architecture.decoder import norm_weights
from plimsoll.planners.architecture.model import Block
from plimsoll.planners.architecture.operation import (
    Operation,
    OperationKind,
    Region,
    Tensor,
    add,
    norm,
    whole_matmul,
)
from plimsoll.planners.architecture.weight import Part, Split, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerInput:
    """The sizes: `width` features for each of `layers` layers, from a vocabulary of their own."""

    hidden_size: int
    width: int
    layers: int
    vocabulary_size: int

    @property
    def total_width(self) -> int:
        """Return the features of all layers' inputs together."""
        return self.layers * self.width


def per_layer_embedding_weights(size: PerLayerInput) -> tuple[Weight, ...]:
    """Return the second embedding, and what computes a second part of the inputs from the first embedding."""
    return (
        Weight(
            name="model.embed_tokens_per_layer.weight",
            shape=(size.vocabulary_size, size.total_width),
            part=Part.EMBEDDING,
            split=Split.VOCABULARY,
            dim=0,
        ),
        Weight(
            name="model.per_layer_model_projection.weight",
            shape=(size.total_width, size.hidden_size),
            part=Part.EMBEDDING,
            split=Split.COLUMN,
            dim=0,
            is_linear=True,
        ),
        *norm_weights("model.per_layer_projection_norm", size.width),
    )


def with_per_layer_embedding(embedding: Block, size: PerLayerInput) -> Block:
    """Return the embedding block, of whose weights these are a part, with their work."""
    total = size.total_width
    return dataclasses.replace(
        embedding,
        tensors=(
            *embedding.tensors,
            Tensor(name="projected_inputs", width=total),
            Tensor(name="normed_inputs", width=total),
            Tensor(name="embedded_inputs", width=total),
        ),
        operations=(
            *embedding.operations,
            whole_matmul("per_layer_model_projection", "residual", "projected_inputs", (size.hidden_size, total)),
            norm("per_layer_projection_norm", "projected_inputs", "normed_inputs"),
            Operation(
                name="per_layer_embedding",
                kind=OperationKind.EMBEDDING,
                inputs=(),
                output="embedded_inputs",
                region=Region.SEQUENCE,
            ),
            add("per_layer_add", "normed_inputs", "embedded_inputs", "embedded_inputs"),
        ),
    )


def per_layer_weights(prefix: str, size: PerLayerInput) -> tuple[Weight, ...]:
    """Return what a layer takes its input in with, whole on every rank as in vLLM."""
    shapes = (
        ("per_layer_input_gate", (size.width, size.hidden_size)),
        ("per_layer_projection", (size.hidden_size, size.width)),
    )
    return (
        *(
            Weight(name=f"{prefix}.{name}.weight", shape=shape, part=Part.FEED_FORWARD, is_linear=True)
            for name, shape in shapes
        ),
        *norm_weights(f"{prefix}.post_per_layer_input_norm", size.hidden_size),
    )


def per_layer_tensors(size: PerLayerInput) -> tuple[Tensor, ...]:
    """Return the activations with which a layer takes its input in."""
    return (
        Tensor(name="per_layer_input", width=size.width),
        Tensor(name="per_layer_gate", width=size.width),
        Tensor(name="per_layer_product", width=size.width),
        Tensor(name="per_layer_output", width=size.hidden_size),
        Tensor(name="per_layer_normed_output", width=size.hidden_size),
    )


def per_layer_operations(size: PerLayerInput, source: str) -> tuple[Operation, ...]:
    """Return how `source` gates a layer's input, and its way up to the width of the model."""
    return (
        whole_matmul("per_layer_gate_projection", source, "per_layer_gate", (size.hidden_size, size.width)),
        Operation(
            name="per_layer_gating",
            kind=OperationKind.GATED_ACTIVATION,
            inputs=("per_layer_gate", "per_layer_input"),
            output="per_layer_product",
            region=Region.SEQUENCE,
        ),
        whole_matmul("per_layer_projection", "per_layer_product", "per_layer_output", (size.width, size.hidden_size)),
        norm("per_layer_norm", "per_layer_output", "per_layer_normed_output"),
    )


def with_per_layer_input(layer: Block, size: PerLayerInput) -> Block:
    """Return a layer that adds its own input at its end."""
    inner = tuple(
        dataclasses.replace(operation, output="feed_forward_residual")
        if operation.output == "layer_output"
        else operation
        for operation in layer.operations
    )
    return dataclasses.replace(
        layer,
        tensors=(
            *layer.tensors,
            Tensor(name="feed_forward_residual", width=size.hidden_size),
            *per_layer_tensors(size),
        ),
        operations=(
            *inner,
            *per_layer_operations(size, "feed_forward_residual"),
            add("per_layer_add", "feed_forward_residual", "per_layer_normed_output", "layer_output"),
        ),
    )
