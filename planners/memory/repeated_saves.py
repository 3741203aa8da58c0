"""What several operations of a layer save alike: where each hands its tensor to a hook, one tensor comes several times.

Counted over transformers' layers, operation by operation: a norm in separate operations saves its input in fp32 for
the square and for the product, a product of matrices its input, flash attention its output, which the next matrix saves
too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from plimsoll.planners.architecture import Block, OperationKind
from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.memory.activations import NO_CASTS, has_layer_norms
from plimsoll.planners.stacks.records import Kernels

FEED_FORWARD = "feed_forward"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedSaves:
    """Bytes a token of a layer's tensors that several operations save: each once, and as often as it comes again."""

    once_bytes: int
    again_bytes: int


def repeated_saves(
    block: Block,
    kernels: Kernels,
    *,
    attention: str,
    element_bytes: int,
    learning: frozenset[str] | None = None,
    autocast: bool = False,
    adapter_casts: Mapping[str, int] = NO_CASTS,
) -> RepeatedSaves:
    """Return what of a layer comes more than once; the last five are those of `saved_bytes`."""
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    once = again = 0
    # Autocast makes each matrix a copy of its own of a norm's output, which is in fp32, and each adapter its input's.
    norms = [op.output for op in block.operations if op.kind is OperationKind.NORM] if autocast else []
    copied = frozenset((*norms, *adapter_casts))
    for name, times, size in _saves(block, kernels, element_bytes, learning, copied, attention):
        if times > 1:
            once += widths[name] * size
            again += widths[name] * size * (times - 1)
    return RepeatedSaves(once_bytes=once, again_bytes=again)


def _saves(
    block: Block,
    kernels: Kernels,
    element_bytes: int,
    learning: frozenset[str] | None,
    copied: frozenset[str],
    attention: str,
) -> Iterator[tuple[str, int, int]]:
    """Yield tensors with how often each is saved and the bytes of its elements.

    Of what is `copied` each matrix saves a tensor of its own. Between the adapters of a feed-forward's two first
    matrices more tensors are saved than wait for their copies.
    """
    upcasts = kernels.norm_keeps_fp32 and not has_layer_norms(block)
    norms = [op for op in block.operations if op.kind is OperationKind.NORM]
    if upcasts:
        yield from ((norm.inputs[0], 2, FP32_BYTES) for norm in norms)
    readers: dict[str, int] = {}
    for operation in block.operations:
        is_near = learning is None or (operation.name in learning and not operation.name.startswith(FEED_FORWARD))
        if operation.kind is OperationKind.MATMUL and is_near:
            for name in operation.inputs:
                readers[name] = readers.get(name, 0) + 1
        elif operation.kind is OperationKind.ATTENTION and attention == "flash":
            readers[operation.output] = readers.get(operation.output, 0) + 1
    yield from ((name, times, element_bytes) for name, times in readers.items() if name not in copied)
