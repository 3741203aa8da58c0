"""Parts of a layer that send what they keep to the host, as Megatron-LM names them (`--offload-modules`).

A part sends every tensor that autograd keeps of it, as often as it is kept, and lets go of it unless another part keeps
it too. What is thrown away to be recomputed is sent all the same where it is made inside.

Source: Megatron-Core 0.16.1, pipeline_parallel/fine_grained_activation_offload.py, and where modules commit their
groups: transformer/attention.py, multi_latent_attention.py, transformer_layer.py, moe/experts.py.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from plimsoll.planners.architecture import Block, ModelSpec, Operation, OperationKind, Region
from plimsoll.planners.ground.errors import InvalidQuestion, nearest_names
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.jobs import recompute_modules
from plimsoll.planners.jobs.recompute_modules import ATTENTION_NORM as NORM_BEFORE_ATTENTION
from plimsoll.planners.jobs.recompute_modules import (
    FEED_FORWARD_NORM,
    LATENT_UP_PROJECTION,
    LATENT_UP_PROJECTIONS,
    MIXTURE,
    dropped,
    is_apart,
)

ATTENTION_NORM, PROJECTIONS, CORE_ATTENTION, OUTPUT_PROJECTION = "attn_norm", "qkv_linear", "core_attn", "attn_proj"
MIXTURE_NORM, EXPERT_INPUT, EXPERT_ACTIVATION = "mlp_norm", "expert_fc1", "moe_act"
# In the order in which a layer's forward pass sends them; they come back in the opposite one.
OFFLOAD_MODULES = (
    PROJECTIONS,
    CORE_ATTENTION,
    OUTPUT_PROJECTION,
    ATTENTION_NORM,
    EXPERT_INPUT,
    EXPERT_ACTIVATION,
    MIXTURE_NORM,
)
OF_EXPERTS = (EXPERT_INPUT, EXPERT_ACTIVATION)
# As each part has been differentiated one of the layer below comes back; these are before attention's inner product.
DIFFERENTIATED_BEFORE_ATTENTION = (EXPERT_ACTIVATION, EXPERT_INPUT, MIXTURE_NORM, OUTPUT_PROJECTION)
# Sets of some hundred models, with whatever is recomputed.
MOST_KEPT_SETS = 1024
MOST_KEPT_LAYERS = 4096
# A part is worth sending that lets go of so much of what it sends.
LEAST_FREED_FRACTION = 0.5


class Division(Enum):
    """What of a micro-batch's tokens a rank has in a tensor, and which ranks divide its features."""

    SEQUENCE = auto()
    TENSOR = auto()
    DISPATCHED = auto()
    EXPERT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Tensors alike that a `module` sends: `name` is that of a block's tensor, `features` how many each has a token.

    Each of `times` is sent, and of them `freed` leave the device. `is_statistic` marks those in fp32, one a head;
    `is_kernels_own` an output that leaves the device where the kernel's tensor is not the one that others keep.
    One that a part `empties` is gone even where others name it.
    """

    module: str
    name: str
    features: int
    division: Division
    times: int = 1
    freed: int = 1
    is_statistic: bool = False
    is_kernels_own: bool = False
    empties: bool = False


def check_offload_modules(modules: Sequence[str], model: ModelSpec) -> None:
    """Raise for parts that nobody knows, that go only with others, or of which no layer of the model has any."""
    pointer = "/training/activation_offload/modules"
    for name in modules:
        if name not in OFFLOAD_MODULES:
            near = nearest_names(name, OFFLOAD_MODULES, most=1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise InvalidQuestion(f"{name[:40]!r} is not one of {', '.join(OFFLOAD_MODULES)}.{meant}", pointer=pointer)
    if OUTPUT_PROJECTION in modules and CORE_ATTENTION not in modules:
        raise InvalidQuestion(
            f"{OUTPUT_PROJECTION} goes with {CORE_ATTENTION} alone: its input is the attention's output, which the "
            f"attention needs in its backward pass. Add {CORE_ATTENTION}.",
            pointer=pointer,
        )
    if modules and not any(sent_by(ByIdentity(block), tuple(modules)) for block in model.layers):
        raise InvalidQuestion(_why_nothing_is_sent(modules, model), pointer=pointer)


def check_offload_layers(layers: int | None, model: ModelSpec) -> None:
    """Raise for a number of layers that leaves none on the device.

    Source: Megatron-Core 0.16.1, transformer/transformer_config.py ("CPU offloading can be done only for layers less").
    """
    if layers is not None and not 1 <= layers < model.num_layers:
        raise InvalidQuestion(
            f"activation_offload of {layers} layers must leave one of the {model.num_layers} of {model.name} on the "
            f"device: at least 1 and at most {model.num_layers - 1}.",
            pointer="/training/activation_offload/layers",
        )


def _why_nothing_is_sent(modules: Sequence[str], model: ModelSpec) -> str:
    """Return that layers lack some parts, or have norms among them only as one module with the matrix behind."""
    fused = [name for name in modules if any(_is_held(block, name) for block in model.layers)]
    others = [name for name in modules if name not in fused]
    lacking = f"No layer of {model.name} has {' or '.join(others)}. " if others else ""
    if not fused:
        return lacking.rstrip()
    goes = {ATTENTION_NORM: f"its input goes with {PROJECTIONS}", MIXTURE_NORM: "its input stays on the device"}
    told = "; ".join(f"{name} is one module with the matrix behind it, and {goes[name]}" for name in fused)
    instead = f"Name {PROJECTIONS} in place of {ATTENTION_NORM}." if ATTENTION_NORM in fused else "Leave it out."
    return f"{lacking}In the layers of {model.name} {told}. {instead}"


def _is_held(block: Block, name: str) -> bool:
    """Return whether a layer has a norm before attention or before its feed-forward, by the name of that part."""
    norm = {ATTENTION_NORM: NORM_BEFORE_ATTENTION, MIXTURE_NORM: FEED_FORWARD_NORM}.get(name)
    return norm is not None and any(True for _ in _named(block, norm))


@functools.lru_cache(maxsize=MOST_KEPT_SETS)
def modules_worth_sending(same: ByIdentity[ModelSpec], recomputed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the parts that let go of most of what they send, where so much is `recomputed`.

    The output's projection goes with attention's inner product, whose output it keeps.
    """
    groups = ((PROJECTIONS,), (CORE_ATTENTION, OUTPUT_PROJECTION), *((name,) for name in OFFLOAD_MODULES[3:]))
    blocks = same.value.layers
    worth = [names for names in groups if _frees_most(blocks, names, recomputed)]
    return tuple(name for names in worth for name in names)


def _frees_most(blocks: Sequence[Block], names: tuple[str, ...], recomputed: tuple[str, ...]) -> bool:
    if MIXTURE in recomputed and set(names) & {*OF_EXPERTS}:
        return False
    tensors = [each for block in blocks for each in sent_by(ByIdentity(block), names, recomputed)]
    sent = sum(each.times * each.features for each in tensors)
    freed = sum(each.freed * each.features for each in tensors)
    return sent > 0 and freed >= LEAST_FREED_FRACTION * sent


@functools.lru_cache(maxsize=MOST_KEPT_LAYERS)
def sent_by(same: ByIdentity[Block], modules: tuple[str, ...], recomputed: tuple[str, ...] = ()) -> tuple[Sent, ...]:
    """Return what some parts of a layer send, where other parts are recomputed.

    A norm that is one module with the matrix behind it belongs to that, and a recomputed attention sends nothing.
    """
    block = same.value
    gone = dropped(block, recomputed, fuses_norms=True)
    every = (each for name in OFFLOAD_MODULES if name in modules for each in _of_module(block, name, recomputed))
    return tuple(replace(each, freed=0) if each.name in gone else each for each in every)


def back_at_attention(block: Block, modules: Sequence[str]) -> tuple[str, ...]:
    """Return the parts of the layer below that have come back as a layer's attention is differentiated."""
    held = [name for name in OFFLOAD_MODULES if name in modules and any(True for _ in _of_module(block, name, ()))]
    returned = sum(name in held for name in DIFFERENTIATED_BEFORE_ATTENTION)
    return tuple(held[::-1][:returned])


def _of_module(block: Block, module: str, recomputed: tuple[str, ...]) -> Iterator[Sent]:
    has_attention = any(True for _ in _attentions(block))
    if module in (ATTENTION_NORM, PROJECTIONS) and not has_attention:
        return
    tensors = _Tensors(block, module)
    match module:
        case "attn_norm" | "mlp_norm":
            name = NORM_BEFORE_ATTENTION if module == ATTENTION_NORM else FEED_FORWARD_NORM
            for norm in _named(block, name):
                if is_apart(block, norm):
                    yield tensors.sent(norm.inputs[0], empties=True)
        case "qkv_linear":
            yield from _of_projections(block, tensors, recomputed)
        case "core_attn":
            if recompute_modules.CORE_ATTENTION not in recomputed:
                yield from _of_attention(block, tensors)
        case "attn_proj":
            yield from (tensors.sent(attention.output) for attention in _attentions(block))
        case "expert_fc1":
            yield from (tensors.sent(dispatch.output) for dispatch in _named(block, "dispatch"))
        case "moe_act":
            # The halves are one product.
            for activation in _named(block, "expert_activation"):
                halves = sum(tensors.widths[name] for name in activation.inputs)
                yield tensors.sent(activation.inputs[0], features=halves)


class _Tensors:
    """A block's tensors as one of its modules sends them."""

    def __init__(self, block: Block, module: str) -> None:
        self._module = module
        self.widths = {tensor.name: tensor.width for tensor in block.tensors}
        self._regions = {tensor.name: tensor.region for tensor in block.tensors}

    def sent(self, name: str, **told: Any) -> Sent:
        """Return a tensor as it is sent, whole unless `features` of it are told."""
        told.setdefault("features", self.widths[name])
        return Sent(module=self._module, name=name, division=self._division(name), **told)

    def _division(self, name: str) -> Division:
        if name == "dispatched":
            return Division.DISPATCHED
        if self._module == EXPERT_ACTIVATION:
            return Division.EXPERT
        return Division.SEQUENCE if self._regions[name] is Region.SEQUENCE else Division.TENSOR


def _of_projections(block: Block, tensors: _Tensors, recomputed: tuple[str, ...]) -> Iterator[Sent]:
    """Yield what queries, keys and values are made of: the norm's input with its output, or latents."""
    norm = next(_named(block, NORM_BEFORE_ATTENTION), None)
    if norm is None:
        return
    has_latents = is_apart(block, norm)
    if not has_latents:
        yield tensors.sent(norm.inputs[0])
    readers = [op for op in block.operations if op.kind is OperationKind.MATMUL and norm.output in op.inputs]
    yield tensors.sent(norm.output, times=len(readers) if has_latents else 1)
    for operation in block.operations:
        if operation.kind is OperationKind.NORM and operation.heads:
            yield tensors.sent(operation.inputs[0])
        elif operation.name in LATENT_UP_PROJECTIONS and operation.matmul_shape is not None:
            # Before its norm, and behind it unless that is made again.
            times = 1 if LATENT_UP_PROJECTION in recomputed else 2
            yield tensors.sent(operation.inputs[0], features=operation.matmul_shape[0], times=times, freed=times)


def _of_attention(block: Block, tensors: _Tensors) -> Iterator[Sent]:
    """Yield what the inner product keeps; its output stays for the projection behind it."""
    for operation in _attentions(block):
        yield from (tensors.sent(name) for name in operation.inputs)
        yield tensors.sent(operation.output, freed=0, is_kernels_own=True)
        yield tensors.sent(operation.output, features=operation.heads, is_statistic=True)


def _attentions(block: Block) -> Iterator[Operation]:
    return (operation for operation in block.operations if operation.kind is OperationKind.ATTENTION)


def _named(block: Block, name: str) -> Iterator[Operation]:
    return (operation for operation in block.operations if operation.name == name)
