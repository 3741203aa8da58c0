"""LoRA adapters: two thin matrices beside each matrix they adapt.

Source: Hu et al. 2021, arXiv:2106.09685; shapes as in peft's LoraModel.
"""

from __future__ import annotations

from planners.architecture import Block, Operation, OperationKind, Part, Split, Weight
from planners.errors import InvalidQuestion
from planners.questions import Lora


def adapter_weights(block: Block, lora: Lora) -> tuple[Weight, ...]:
    """Return A (rank x inputs) and B (outputs x rank) of every targeted matrix of one layer.

    Tensor parallelism splits the factor that faces the split features and
    leaves the other whole.
    """
    adapters: list[Weight] = []
    for weight in block.weights:
        if weight.is_linear and module_name(weight) in lora.target_modules:
            outputs, inputs = matrix_features(weight)
            prefix = weight.name.removesuffix(".weight")
            is_column = weight.split is Split.COLUMN
            is_row = weight.split is Split.ROW
            adapters.append(
                Weight(
                    name=f"{prefix}.lora_A.weight",
                    shape=(lora.rank, inputs),
                    part=weight.part,
                    split=Split.ROW if is_row else Split.REPLICATED,
                    dim=1 if is_row else None,
                    units=weight.units if is_row else 0,
                    experts=weight.experts,
                    is_linear=True,
                )
            )
            adapters.append(
                Weight(
                    name=f"{prefix}.lora_B.weight",
                    shape=(outputs, lora.rank),
                    part=weight.part,
                    split=Split.COLUMN if is_column else Split.REPLICATED,
                    dim=0 if is_column else None,
                    units=weight.units if is_column else 0,
                    sections=weight.sections if is_column else (),
                    experts=weight.experts,
                    is_linear=True,
                )
            )
    return tuple(adapters)


def adapted_operations(block: Block, lora: Lora) -> frozenset[str]:
    """Return the names of the matrix products that an adapter works beside."""
    adapted = {
        (weight.part, weight.split is Split.ROW)
        for weight in block.weights
        if weight.is_linear and module_name(weight) in lora.target_modules
    }
    return frozenset(
        operation.name
        for operation in block.operations
        if operation.kind is OperationKind.MATMUL and (_part(operation), operation.is_row_parallel) in adapted
    )


def _part(operation: Operation) -> Part:
    """Return which of a layer's parts a product belongs to, by the name its half gave it."""
    if operation.name.startswith("expert"):
        return Part.EXPERT
    is_feed_forward = operation.name.startswith(("feed_forward", "shared"))
    return Part.FEED_FORWARD if is_feed_forward else Part.ATTENTION


def check_targets(blocks: tuple[Block, ...], lora: Lora) -> None:
    """Raise `InvalidQuestion` when an adapter's rank or a target module makes no sense here."""
    known = {module_name(weight) for block in blocks for weight in block.weights if weight.is_linear}
    if lora.rank < 1:
        raise InvalidQuestion(f"rank must be at least 1, not {lora.rank}.", pointer="/training/lora/rank")
    if not known & set(lora.target_modules):
        raise InvalidQuestion(
            f"None of {', '.join(lora.target_modules)} is a matrix of this model; it has {', '.join(sorted(known))}.",
            pointer="/training/lora/target_modules",
        )


def module_name(weight: Weight) -> str:
    """Return the module a weight belongs to: `q_proj` of `model.layers.{layer}.self_attn.q_proj.weight`."""
    return weight.name.removesuffix(".weight").rsplit(".", 1)[-1]


def matrix_features(weight: Weight) -> tuple[int, int]:
    """Return (outputs, inputs) of a matrix, whichever way round the checkpoint holds it.

    A column split divides the outputs and a row split the inputs, so the split
    dimension tells which of the two is which.
    """
    first, second = weight.shape[-2:]
    is_transposed = (weight.split is Split.COLUMN and weight.dim == 1) or (
        weight.split is Split.ROW and weight.dim == 0
    )
    return (second, first) if is_transposed else (first, second)
