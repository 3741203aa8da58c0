"""Parts of a layer that are computed again one by one, as Megatron-LM names them (`--recompute-modules`).

A checkpointed part keeps its inputs and computes all that lies inside again. A part
whose outputs are discarded computes them again for whoever kept them as an input.
Source: NVIDIA/Megatron-LM, core/transformer/transformer_config.py (recompute_modules)
and core/tensor_parallel/random.py (CheckpointWithoutOutput).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from plimsoll.planners.architecture import Block, ModelSpec, Operation, OperationKind
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.identity import ByIdentity

CORE_ATTENTION, LAYER_NORM, FEED_FORWARD, MIXTURE = "core_attn", "layernorm", "mlp", "moe"
EXPERT_ACTIVATION, LATENT_UP_PROJECTION = "moe_act", "mla_up_proj"
ATTENTION_NORM, FEED_FORWARD_NORM = "attention_norm", "feed_forward_norm"
LATENT_UP_PROJECTIONS = ("query_up", "key_value_up")
# Sets of some hundred models, on a few stacks.
MOST_KEPT_SETS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """Operations computed again together, and whether their outputs are discarded too."""

    holds: Callable[[Operation], bool]
    discards_outputs: bool


def _is_feed_forward(operation: Operation) -> bool:
    moves = (OperationKind.NORM, OperationKind.ADD)
    return operation.name.startswith("feed_forward_") and operation.kind not in moves


def _is_expert(operation: Operation) -> bool:
    return operation.name in ("router", "dispatch", "combine") or _is_of(operation, "expert_")


def _is_shared(operation: Operation) -> bool:
    return _is_of(operation, "shared_")


def _is_of(operation: Operation, prefix: str) -> bool:
    return operation.name.startswith(prefix)


MODULES: Mapping[str, Module] = {
    CORE_ATTENTION: Module(holds=lambda op: op.kind is OperationKind.ATTENTION, discards_outputs=False),
    LAYER_NORM: Module(holds=lambda op: op.name in (ATTENTION_NORM, FEED_FORWARD_NORM), discards_outputs=True),
    FEED_FORWARD: Module(holds=_is_feed_forward, discards_outputs=False),
    MIXTURE: Module(holds=lambda op: _is_expert(op) or _is_shared(op), discards_outputs=False),
    EXPERT_ACTIVATION: Module(holds=lambda op: op.name == "expert_activation", discards_outputs=True),
    "shared_experts": Module(holds=_is_shared, discards_outputs=False),
    LATENT_UP_PROJECTION: Module(holds=lambda op: op.name in LATENT_UP_PROJECTIONS, discards_outputs=True),
}
# The norm before these, where it is a module of its own, is left alone: its output is the input that they keep.
KEEP_THE_NORM_BEFORE = (FEED_FORWARD, MIXTURE)


def check_modules(modules: tuple[str, ...], model: ModelSpec) -> None:
    """Raise for a module that nobody knows, or that no layer of the model has."""
    for name in modules:
        if name not in MODULES:
            raise InvalidQuestion(
                f"{name[:40]!r} is not one of {', '.join(MODULES)}.", pointer="/training/recompute/modules"
            )
        if not any(True for block in model.layers for _ in _operations(block, name)):
            raise InvalidQuestion(f"No layer of {model.name} has {name}.", pointer="/training/recompute/modules")


# From what spares most for the time that it takes again to what spares least; whole experts come in place of parts.
IN_ORDER = (LAYER_NORM, EXPERT_ACTIVATION, LATENT_UP_PROJECTION, "shared_experts", FEED_FORWARD)
# So many of the first are tried with and without each other.
MOST_APART = 3
# Megatron-Core 0.16.1, transformer/transformer_config.py: delayed scaling in 8 bits does not support them.
NOT_WITH_DELAYED_SCALING = (LAYER_NORM, EXPERT_ACTIVATION)


@functools.lru_cache(maxsize=MOST_KEPT_SETS)
def sets_worth_trying(
    same: ByIdentity[ModelSpec], *, keeps_scores: bool, fuses_norms: bool
) -> tuple[tuple[str, ...], ...]:
    """Return sets of modules, those with whole experts last; of sets that compute the same again the smallest.

    Attention's scores are the first where they are kept. Every set of the modules that spare most for their time is
    among them; one that spares less is added behind all of those.
    """
    model = same.value
    first = (CORE_ATTENTION,) if keeps_scores else ()
    held = [name for name in (*first, *IN_ORDER) if _is_held(name, model)]
    best, others = held[:MOST_APART], held[MOST_APART:]
    apart = itertools.chain.from_iterable(itertools.combinations(best, number + 1) for number in range(len(best)))
    behind = ((*best, *others[: number + 1]) for number in range(len(others)))
    with_experts = (*(name for name in held if name != EXPERT_ACTIVATION), MIXTURE)
    sets = (*apart, *behind, *([with_experts] if _is_held(MIXTURE, model) else []))
    worth: dict[tuple[tuple[Operation, ...], ...], tuple[str, ...]] = {}
    for names in sets:
        worth.setdefault(tuple(again(block, names, fuses_norms=fuses_norms) for block in model.layers), names)
    return tuple(names for operations, names in worth.items() if any(operations))


def _is_held(name: str, model: ModelSpec) -> bool:
    return any(True for block in model.layers for _ in _operations(block, name))


def again(block: Block, modules: tuple[str, ...], *, fuses_norms: bool) -> tuple[Operation, ...]:
    """Return the operations of a layer that the backward pass computes again, in order.

    `fuses_norms`: the stack has a norm and the one matrix behind it in one module.
    """
    chosen = {operation.name for name in modules for operation in _again(block, name, modules, fuses_norms)}
    return tuple(operation for operation in block.operations if operation.name in chosen)


def dropped(block: Block, modules: tuple[str, ...], *, fuses_norms: bool) -> frozenset[str]:
    """Return the tensors of a layer that nobody keeps for the backward pass."""
    names = (_dropped_by(name, block, modules, fuses_norms) for name in modules)
    return frozenset().union(*names)


def restored(block: Block, modules: tuple[str, ...], *, fuses_norms: bool) -> frozenset[str]:
    """Return the tensors that stand twice once they are back: as they are computed again, and where they had been.

    Source: Megatron-Core 0.16.1, core/tensor_parallel/random.py, `CheckpointWithoutOutput._recompute`.
    """
    discarding = (name for name in modules if MODULES[name].discards_outputs and name != EXPERT_ACTIVATION)
    return frozenset().union(*(_dropped_by(name, block, modules, fuses_norms) for name in discarding))


def _dropped_by(name: str, block: Block, modules: tuple[str, ...], fuses_norms: bool) -> set[str]:
    """Return what is not kept because of one of the modules."""
    inside = tuple(_again(block, name, modules, fuses_norms))
    outputs = {operation.output for operation in inside}
    if not MODULES[name].discards_outputs:
        outside = [operation for operation in block.operations if operation not in inside]
        return outputs - {tensor for operation in outside for tensor in operation.inputs}
    if name == LATENT_UP_PROJECTION:
        # The keys' half and the values' come out of one product.
        outputs |= {tensor for operation in _operations(block, CORE_ATTENTION) for tensor in operation.inputs}
    return outputs


def has_norm_apart(block: Block) -> bool:
    """Return whether a norm of a layer is a module of its own where a norm and the one matrix behind it are one.

    Source: Megatron-Core 0.16.1, models/gpt/gpt_layer_specs.py: before latent attention, and before experts.
    """
    return any(is_apart(block, operation) for operation in _operations(block, LAYER_NORM))


def is_apart(block: Block, norm: Operation) -> bool:
    """Return whether a norm is a module of its own, and not one with the matrix behind it."""
    if norm.name == ATTENTION_NORM:
        return any(operation.name in LATENT_UP_PROJECTIONS for operation in block.operations)
    return any(_is_expert(operation) for operation in block.operations)


def _again(block: Block, name: str, modules: tuple[str, ...], fuses_norms: bool) -> Iterator[Operation]:
    kept_norm = name == LAYER_NORM and any(
        other in modules and any(True for _ in _operations(block, other)) for other in KEEP_THE_NORM_BEFORE
    )
    for operation in block.operations:
        is_within = fuses_norms and MODULES[LAYER_NORM].holds(operation) and not is_apart(block, operation)
        if is_within:
            # It is computed again with the matrix behind it or not at all.
            if name == FEED_FORWARD and operation.name == FEED_FORWARD_NORM:
                yield operation
        elif MODULES[name].holds(operation) and not (kept_norm and operation.name == FEED_FORWARD_NORM):
            yield operation


def _operations(block: Block, name: str) -> Iterator[Operation]:
    return (operation for operation in block.operations if MODULES[name].holds(operation))
