"""The tensors of a model as DeepSpeed's engine sees them: one after the other, each with its own hook.

Parameters are in the order of `model.parameters()`; their gradients come in the reverse of it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from enum import IntEnum

from plimsoll.planners.architecture import Part, Split, Weight
from plimsoll.planners.jobs.job import BlockWeights

# Answers kept for the parts of some hundred models.
MOST_KEPT_PARTS = 4096
BEHIND_ATTENTION = (Part.FEED_FORWARD, Part.EXPERT, Part.SHARED_EXPERT, Part.ROUTER)


class At(IntEnum):
    """When in a layer's backward pass a gradient is made: from its last matrix back to its first norm."""

    LAST = 0
    FEED_FORWARD = 1
    OUTPUT = 2
    ATTENTION = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tensor:
    """One parameter on a rank: its elements, whether it learns, and the module that has it, by name.

    `is_pinned` where the product that uses it saves a view of it: transposed experts, which no linear layer multiplies
    by. Experts that lie as they are multiplied by are saved as the parameters that they are.
    """

    elements: int
    learns: bool
    module: str
    part: Part
    at: At
    is_pinned: bool = False


@functools.lru_cache(maxsize=MOST_KEPT_PARTS)
def tensors_of(part: BlockWeights, expert_parallel: int) -> tuple[Tensor, ...]:
    """Return a part's parameters in the model's order, adapters behind all else.

    transformers 5 holds a layer's experts as two parameters: gate and up in one, and down.
    """
    made: list[Tensor] = []
    merged: dict[str, int] = {}
    for weights, learns in ((part.frozen, False), (part.trainable, True)):
        experts = iter(sorted((one for one in weights if one.experts > 1), key=_is_last))
        for weight in (next(experts) if one.experts > 1 else one for one in weights):
            if weight.is_buffer:
                continue
            one = _tensor(weight, expert_parallel, learns=learns)
            if one.part is Part.EXPERT and weight.is_linear and not weight.is_fused and weight.split is not Split.ROW:
                if one.module in merged:
                    place = merged[one.module]
                    made[place] = replace(made[place], elements=made[place].elements + one.elements)
                    continue
                merged[one.module] = len(made)
            made.append(one)
    return tuple(made)


def _tensor(weight: Weight, expert_parallel: int, *, learns: bool) -> Tensor:
    ranks = expert_parallel if weight.experts > 1 else 1
    module = "experts" if weight.experts > 1 else weight.name.rpartition(".")[0]
    return Tensor(
        elements=weight.elements // ranks,
        learns=learns,
        module=module,
        part=weight.part,
        at=_moment(weight),
        is_pinned=weight.experts > 1 and weight.is_linear and _has_outputs_first(weight),
    )


def _has_outputs_first(weight: Weight) -> bool:
    """Return whether an expert's outputs come before its inputs, as they are published one by one."""
    return not weight.is_fused or weight.dim == (2 if weight.split is Split.ROW else 1)


def _moment(weight: Weight) -> At:
    if weight.part in BEHIND_ATTENTION:
        return At.LAST if _is_last(weight) else At.FEED_FORWARD
    return At.OUTPUT if _is_last(weight) else At.ATTENTION


def _is_last(weight: Weight) -> bool:
    """Return whether it belongs to the matrix that ends its half of a layer."""
    return weight.split is Split.ROW or "down_proj" in weight.name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelTensors:
    """The parameters of embedding, of each layer by its number, and of last norm and head.

    `learning` are those that learn, in the model's order.
    """

    embedding: tuple[Tensor, ...]
    layers: tuple[tuple[Tensor, ...], ...]
    head: tuple[Tensor, ...]

    learning: tuple[Tensor, ...]


@functools.lru_cache(maxsize=MOST_KEPT_PARTS)
def model_tensors(
    embedding: BlockWeights, layers: tuple[BlockWeights, ...], head: BlockWeights, expert_parallel: int
) -> ModelTensors:
    """Return the parameters of a model's parts; each kind of layer knows its layers' numbers."""
    numbered = sorted((number, kind) for kind, part in enumerate(layers) for number in part.block.layers)
    parts = [tensors_of(part, expert_parallel) for part in (embedding, *(layers[kind] for _, kind in numbered), head)]
    return ModelTensors(
        embedding=parts[0],
        layers=tuple(parts[1:-1]),
        head=parts[-1],
        learning=tuple(tensor for part in parts for tensor in part if tensor.learns),
    )
