"""A micro-batch as DeepSpeed's engine sees it: the calls of modules' hooks, the gradients, and what is gathered when.

Modules are called in the order of `transformers`' layers. Containers have no parameters of their own, but each call
gathers ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from plimsoll.planners.architecture import Part
from plimsoll.planners.memory.programs.zero.gathering import PERSISTENT_ELEMENTS, Coordinator
from plimsoll.planners.memory.programs.zero.tensors import BEHIND_ATTENTION, At, ModelTensors, Tensor

# The most live elements, and those gathered ahead at once.
Limits: TypeAlias = tuple[int, int]
EMBEDDING, HEAD = -1, -2
LEAF = "leaf"


class Act(Enum):
    """What happens at an event of a micro-batch."""

    GATHER = "gather"
    RELEASE = "release"
    UNPIN = "unpin"
    KEEP = "keep"
    REDUCE = "reduce"


@dataclass(frozen=True, slots=True, eq=False)
class _Module:
    """A module: its parameters' numbers, and those that learn; nothing of modules without parameters.

    `pinned` are the numbers of those whose storage its operation saves for the backward pass: it stays though the
    engine lets go of the parameter. The engine puts a function of its own in the place of linear layers' alone
    (runtime/zero/linear.py); a mixture's grouped products are not that.
    """

    at: At = At.ATTENTION
    numbers: tuple[int, ...] = ()
    learning: tuple[tuple[int | None, Tensor], ...] = ()
    pinned: tuple[int, ...] = ()
    is_leaf: bool = False
    is_forward: bool = True
    is_backward: bool = True


@dataclass(frozen=True, slots=True)
class Event:
    act: Act
    layer: int
    at: At
    numbers: tuple[int, ...] = ()
    pinned: tuple[int, ...] = ()
    tensor: Tensor | None = None
    is_leaf: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """The events of a micro-batch; `turn` is the place of the first one of the backward pass.

    `usual` are the elements that are gathered at most during each event, those after it, and those that it asks for,
    `first` those of the first micro-batch of all.
    """

    events: tuple[Event, ...]
    turn: int
    usual: tuple[tuple[int, int, int], ...]
    first: tuple[tuple[int, int, int], ...]


def script(
    model: ModelTensors,
    gathering: Limits | None,
    *,
    is_tied: bool,
    is_recomputed: bool,
    has_leaves: bool,
    has_dropout: bool,
    bias_first: bool,
) -> Script:
    """Return a micro-batch's events and what is gathered at each; `gathering` is None if nothing ever is."""
    sizes, modules = _modules(model, is_tied=is_tied, has_leaves=has_leaves)
    forward = list(_forward(modules, pins=not is_recomputed))
    if not any(tensor.learns for tensor in model.embedding):
        # Nothing asks for the gradient of its output either.
        del modules[EMBEDDING]
    backward = _backward(modules, is_recomputed=is_recomputed, has_dropout=has_dropout, bias_first=bias_first)
    events = [*forward, *backward]
    if gathering is None:
        made = tuple(event for event in events if event.tensor is not None)
        return Script(made, 0, ((0, 0, 0),) * len(made), ((0, 0, 0),) * len(made))
    gathers = [event for event in events if event.act is Act.GATHER]
    calls, leaves = [event.numbers for event in gathers], [event.is_leaf for event in gathers]
    turn = sum(event.act is Act.GATHER for event in forward)
    usual, first = (
        Coordinator(sizes, calls, leaves, turn, *gathering, is_recording=is_recording) for is_recording in (False, True)
    )
    return Script(
        events=tuple(events),
        turn=len(forward),
        usual=tuple(_gathered(event, usual) for event in events),
        first=tuple(_gathered(event, first) for event in events),
    )


def _gathered(event: Event, coordinator: Coordinator) -> tuple[int, int, int]:
    """Return the most elements that are gathered during an event, those after it, and those that are asked for."""
    most, pulled = coordinator.held, 0
    if event.act is Act.GATHER:
        most = coordinator.fetch(event.numbers)
        pulled = coordinator.pulled
    elif event.act is Act.UNPIN:
        coordinator.unpin(event.numbers)
    elif event.act is Act.RELEASE:
        coordinator.release(event.numbers, event.pinned, is_leaf=event.is_leaf)
    return most, coordinator.held, pulled


def persistent_elements(model: ModelTensors) -> int:
    """Return the elements of parameters that stage 3 leaves gathered from step to step."""
    return sum(
        tensor.elements
        for part in (model.embedding, *model.layers, model.head)
        for tensor in part
        if tensor.elements <= PERSISTENT_ELEMENTS
    )


def _modules(
    model: ModelTensors, *, is_tied: bool, has_leaves: bool
) -> tuple[list[int], dict[int, tuple[_Module, ...]]]:
    """Return the parameters' sizes and the modules of embedding, layers and head in the order of their calls."""
    sizes: list[int] = []
    embedding = _of_part(model.embedding, sizes, at=At.ATTENTION)
    # The model, its body, and the body's rotary tables, which need no gradient.
    before, after = _Module(is_backward=False), _Module(At.LAST, is_forward=False)
    modules = {EMBEDDING: (before, before, *embedding, before)}
    for number, tensors in enumerate(model.layers):
        norms = _of_part([tensor for tensor in tensors if _is_norm(tensor)], sizes, at=At.OUTPUT)
        others = [tensor for tensor in tensors if not _is_norm(tensor)]
        of_layer = _of_part(others, sizes, at=None, is_leaf=has_leaves)
        attention = [module for module in of_layer if module.at in (At.OUTPUT, At.ATTENTION)]
        rest = [module for module in of_layer if module.at in (At.LAST, At.FEED_FORWARD)]
        if not any(tensor.part is Part.EXPERT for tensor in tensors):
            rest = [*rest[:1], _Module(At.FEED_FORWARD), *rest[1:]]
        # The layer, its first norm, and attention; the second norm and the feed-forward with its activation.
        modules[number] = (
            _Module(At.ATTENTION),
            *norms[:1],
            _Module(At.ATTENTION),
            *attention,
            *norms[1:],
            _Module(At.LAST),
            *rest,
        )
    head = _of_part(model.head, sizes, at=At.LAST)
    if is_tied:
        head = (*head, _Module(At.LAST, embedding[0].numbers[:1]))
    modules[HEAD] = (*head[:1], after, *head[1:], after)
    return sizes, modules


def _is_norm(tensor: Tensor) -> bool:
    """Return whether it is of a norm of whole tokens: those of heads stand within the attention."""
    return tensor.part is Part.NORM and "attn." not in tensor.module


def _of_part(
    tensors: Sequence[Tensor], sizes: list[int], at: At | None, *, is_leaf: bool = False
) -> tuple[_Module, ...]:
    by_name: dict[str, list[tuple[int | None, Tensor]]] = {}
    for tensor in tensors:
        number = None
        if tensor.elements > PERSISTENT_ELEMENTS:
            number = len(sizes)
            sizes.append(tensor.elements)
        is_inside = is_leaf and tensor.part in BEHIND_ATTENTION
        by_name.setdefault(LEAF if is_inside else tensor.module, []).append((number, tensor))
    made = []
    for name, held in by_name.items():
        made.append(
            _Module(
                at=min(tensor.at for _, tensor in held) if at is None else at,
                numbers=tuple(number for number, _ in held if number is not None),
                learning=tuple((number, tensor) for number, tensor in held if tensor.learns),
                pinned=tuple(number for number, tensor in held if number is not None and tensor.is_pinned),
                is_leaf=name == LEAF,
            )
        )
    return tuple(made)


def _forward(modules: dict[int, tuple[_Module, ...]], *, pins: bool) -> Iterator[Event]:
    for part in sorted(modules, key=_place):
        for module in modules[part]:
            if not module.is_forward:
                continue
            yield Event(Act.GATHER, part, module.at, module.numbers, is_leaf=module.is_leaf)
            yield Event(
                Act.RELEASE,
                part,
                module.at,
                module.numbers,
                pinned=module.pinned if pins else (),
                is_leaf=module.is_leaf,
            )


def _place(part: int) -> tuple[int, int]:
    """Return where in the order of the forward pass a part stands."""
    return (part == HEAD) - (part == EMBEDDING), part


def _backward(
    modules: dict[int, tuple[_Module, ...]], *, is_recomputed: bool, has_dropout: bool, bias_first: bool
) -> Iterator[Event]:
    for part in sorted(modules, key=_place, reverse=True):
        again = is_recomputed and part >= 0
        if again and has_dropout:
            again = False
            yield from _run_again(modules[part], part)
        for module in reversed(modules[part]):
            if not module.is_backward:
                continue
            yield Event(Act.GATHER, part, module.at, module.numbers, is_leaf=module.is_leaf)
            if again and module.numbers:
                again = False
                yield from _run_again(modules[part], part)
            yield from _reduced(module, part, bias_first=bias_first)
            yield Event(Act.UNPIN, part, module.at, module.numbers)
            if part != EMBEDDING:  # No gradient of its input tells when it is through.
                yield Event(Act.RELEASE, part, module.at, module.numbers, is_leaf=module.is_leaf)


def _run_again(modules: Sequence[_Module], part: int) -> Iterator[Event]:
    """Yield the second forward pass of a layer, as the first of its saved tensors is asked for.

    That is the mask of the dropout behind its last matrix, or else what that matrix has saved. What is saved again are
    views, which pin the storages (torch, utils/checkpoint.py, `_recomputation_hook`); the last module's pass is left
    as soon as it has saved.
    """
    for module in modules:
        yield Event(Act.GATHER, part, At.LAST, module.numbers, is_leaf=module.is_leaf)
        if module is not modules[-1]:
            yield Event(Act.RELEASE, part, At.LAST, module.numbers, module.numbers, is_leaf=module.is_leaf)


def _reduced(module: _Module, part: int, *, bias_first: bool) -> Iterator[Event]:
    """Yield the gradients of a module: those of a matrix and its bias are made at once.

    torch's own linear layer gives the bias's first, stage 3's (runtime/zero/linear.py) the matrix's. Those of a module
    whose submodules have no hooks wait until all are made (stage3.py, 1533), those of experts each come for themselves.
    """
    last_first = module.learning[::-1]
    are_apart = not module.is_leaf and any(tensor.part is Part.EXPERT for _, tensor in last_first)
    for number, tensor in last_first:
        at = tensor.at if part >= 0 else module.at
        yield Event(Act.KEEP, part, at, tensor=tensor)
        if number is not None:
            yield Event(Act.UNPIN, part, at, (number,))
        if are_apart:
            yield Event(Act.REDUCE, part, at, tensor=tensor)
    if not are_apart:
        for _, tensor in last_first if bias_first and not module.is_leaf else module.learning:
            at = At.FEED_FORWARD if module.is_leaf else tensor.at
            yield Event(Act.REDUCE, part, at if part >= 0 else module.at, tensor=tensor)
