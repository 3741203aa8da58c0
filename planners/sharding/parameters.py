"""Which weights of a checkpoint are one parameter of a stack that joins matrices with the same input."""

from __future__ import annotations

from collections.abc import Iterable

from plimsoll.planners.architecture import Part, Split, Weight

MATRIX_DIMENSIONS = 2


def joined(weights: Iterable[Weight]) -> tuple[tuple[Weight, ...], ...]:
    """Return the weights of one block by parameter: column-parallel matrices of one part with the same input are one.

    So Megatron-Core has queries, keys and values in `linear_qkv` and both inner matrices of a gated feed-forward layer
    in `linear_fc1` (core/transformer/attention.py, mlp.py).
    """
    parameters: dict[object, list[Weight]] = {}
    for weight in weights:
        is_joined = weight.split is Split.COLUMN and weight.is_linear and len(weight.shape) == MATRIX_DIMENSIONS
        key = (weight.part, weight.shape[-1], weight.experts) if is_joined else weight.name
        parameters.setdefault(key, []).append(weight)
    return tuple(map(tuple, parameters.values()))


def updated_as_one(weights: Iterable[Weight]) -> tuple[tuple[Weight, ...], ...]:
    """Return the same as an optimizer of whole matrices takes them: queries, keys and values apart again.

    Source: Megatron-Core, core/optimizer/muon.py, `split_qkv`.
    """
    parameters = joined(weights)
    return tuple(
        apart
        for parameter in parameters
        for apart in ([(weight,) for weight in parameter] if parameter[0].part is Part.ATTENTION else [parameter])
    )
