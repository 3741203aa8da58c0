"""Gated attention: a gate computed from the layer's input scales what the heads gathered.

Source: Qiu et al. 2025, arXiv:2505.06708.
"""

from __future__ import annotations

import dataclasses

from plimsoll.planners.architecture.decoder import Half
from plimsoll.planners.architecture.operation import Operation, OperationKind, Region, Tensor, matmul


def gated_output(half: Half, *, hidden_size: int, gate_width: int, context_width: int) -> Half:
    """Return attention with a gate of its own matrix before the output projection.

    `gate_width` is one for each head or one for each of the context's features.
    """
    before = tuple(operation for operation in half.operations if operation.name != "output_projection")
    output = next(operation for operation in half.operations if operation.name == "output_projection")
    return Half(
        tensors=(
            *half.tensors,
            Tensor(name="attention_gate", width=gate_width, region=Region.TENSOR),
            Tensor(name="gated_context", width=context_width, region=Region.TENSOR),
        ),
        operations=(
            *before,
            matmul("gate_projection", "attention_input", "attention_gate", (hidden_size, gate_width)),
            Operation(
                name="attention_gating",
                kind=OperationKind.GATED_ACTIVATION,
                inputs=("attention_gate", "attention_context"),
                output="gated_context",
            ),
            dataclasses.replace(output, inputs=("gated_context",)),
        ),
    )
