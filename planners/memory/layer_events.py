"""Events within a layer's backward pass, and what of a layer no gradient needs, derived from its operations.

Traced operation by operation over transformers 5.23's layers under FSDP2 (docs/agreement.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll.planners.architecture import Block, Operation, OperationKind, Part
from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.memory.activations import (
    NOTHING_SAVED,
    RESIDUAL,
    SavedBytes,
    checkpoint_width,
    has_layer_norms,
    norm_backward_bytes,
    saved_bytes,
)
from plimsoll.planners.memory.eager_attention import (
    EAGER,
    attentions_of,
    has_scores,
    softmax_backward_bytes,
)
from plimsoll.planners.memory.unfused_attention import is_unfused, plain_backward_bytes
from plimsoll.planners.stacks.records import Kernels

# A norm's input and output, and the residual's gradient.
BESIDE_FIRST_PRODUCTS = 3
# A feed-forward's input, its last product, the adapter's scaled product and the sum of both (peft, `Linear.forward`).
CAST_BESIDE_TENSORS = 4
# Two products and two sums with the stream.
TENSORS_OF_PARALLEL_HALVES = 4


def live_at_second_norm(
    block: Block,
    kernels: Kernels,
    *,
    attention: str,
    element_bytes: int,
    learning: frozenset[str] | None,
    fp8_input_bytes: int = 0,
) -> SavedBytes:
    """Return a layer's live bytes as the norm between its halves is differentiated; nothing without such a norm.

    All that the attention saves still waits, nothing of the feed-forward does, and the norm has its own products.
    """
    sizes: dict[str, Any] = {"attention": attention, "element_bytes": element_bytes, "fp8_input_bytes": fp8_input_bytes}
    return _live_at_norm(block, _second_norm(block), kernels, learning=learning, **sizes)


def live_at_last_norm(
    block: Block, kernels: Kernels, *, attention: str, element_bytes: int, learning: frozenset[str] | None
) -> SavedBytes:
    """Return a layer's live bytes as a norm behind its last matrix is differentiated; nothing without such a norm."""
    sizes: dict[str, Any] = {"attention": attention, "element_bytes": element_bytes}
    return _live_at_norm(block, _last_norm(block), kernels, learning=learning, **sizes)


def _live_at_norm(
    block: Block, index: int | None, kernels: Kernels, *, element_bytes: int, **saving: Any
) -> SavedBytes:
    """Return what is saved before the norm that stands there, and its own products."""
    if index is None:
        return NOTHING_SAVED
    before = replace(block, operations=block.operations[:index])
    saved = saved_bytes(before, kernels, element_bytes=element_bytes, **saving)
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    width = widths[block.operations[index].inputs[0]]
    norm_bytes = width * norm_backward_bytes(block, kernels, element_bytes)
    return replace(saved, sequence_bytes=saved.sequence_bytes + norm_bytes)


def live_at_attention(
    block: Block,
    kernels: Kernels,
    *,
    attention: str,
    element_bytes: int,
    learning: frozenset[str] | None,
    fp8_input_bytes: int = 0,
) -> SavedBytes:
    """Return a layer's live bytes as its attention is differentiated; nothing without attention.

    All that the attention saves, the gradients of its inputs and of its output, and the residual's; of eager attention
    what lives as its softmax is differentiated.
    """
    index = _attention(block)
    if index is None:
        return NOTHING_SAVED
    if has_scores(attention, kernels):
        return _live_at_softmax(block, index, kernels, element_bytes=element_bytes, learning=learning)
    product = block.operations[index]
    before = replace(block, operations=block.operations[: index + 1])
    saved = saved_bytes(
        before,
        kernels,
        attention=attention,
        element_bytes=element_bytes,
        learning=learning,
        fp8_input_bytes=fp8_input_bytes,
    )
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    scores = 0
    if is_unfused(attention, kernels):
        # The product with the values alone: gradients of the probabilities and of the values of every query head.
        scores, features = product.heads * element_bytes, product.heads * product.value_dim + widths[product.output]
    elif kernels.repeats_shared_heads:
        features = product.heads * (2 * product.key_dim + 2 * product.value_dim)
    else:
        features = sum(widths[name] for name in (*product.inputs, product.output))
    return replace(
        saved,
        sequence_bytes=saved.sequence_bytes + element_bytes * checkpoint_width(block),
        tensor_bytes=saved.tensor_bytes + element_bytes * features,
        score_bytes=saved.score_bytes + scores,
    )


def live_at_plain_softmax(
    block: Block, kernels: Kernels, *, element_bytes: int, learning: frozenset[str] | None
) -> SavedBytes:
    """Return a layer's live bytes as torch's softmax of an unfused attention is differentiated, in fp32.

    Queries, keys and what comes before still wait, and the values' gradient is there.
    """
    index = _attention(block)
    if index is None:
        return NOTHING_SAVED
    before = _live_at_softmax(block, index, kernels, element_bytes=element_bytes, learning=learning)
    heads = sum(operation.heads for operation in attentions_of(block))
    return replace(before, score_bytes=float(heads * plain_backward_bytes(element_bytes)))


def _live_at_softmax(
    block: Block, index: int, kernels: Kernels, *, element_bytes: int, learning: frozenset[str] | None
) -> SavedBytes:
    """Return a layer's live bytes as the softmax of eager attention is differentiated.

    The product with the values has been: its operands and the output's gradient are gone, the values' gradient is
    there. Queries and keys still wait, these as often as query heads share them, and all that comes before.
    """
    product = block.operations[index]
    before = replace(block, operations=block.operations[:index])
    saved = saved_bytes(before, kernels, attention=EAGER, element_bytes=element_bytes, learning=learning)
    operands = element_bytes * product.heads * (2 * product.key_dim + product.value_dim)
    return replace(
        saved,
        sequence_bytes=saved.sequence_bytes + element_bytes * checkpoint_width(block),
        tensor_bytes=saved.tensor_bytes + operands,
        score_bytes=float(product.heads * softmax_backward_bytes(product, element_bytes)),
    )


def live_at_first_products(
    block: Block, kernels: Kernels, *, attention: str, element_bytes: int, learning: frozenset[str] | None
) -> SavedBytes:
    """Return a layer's live bytes as the first matrices of its feed-forward have all had their gradients.

    Beside all that the attention saves, the norm's input and output, the gradient of what one of them wrote, those of
    every matrix's input, and the residual's. Nothing where norms are separate operations in fp32: these hold more.
    """
    index = _second_norm(block)
    inner = [op for op in block.operations if op.kind in (OperationKind.GATED_ACTIVATION, OperationKind.ACTIVATION)]
    are_kernels = has_layer_norms(block) or not kernels.norm_keeps_fp32
    if index is None or not inner or not are_kernels:
        return NOTHING_SAVED
    before = replace(block, operations=block.operations[:index])
    saved = saved_bytes(before, kernels, attention=attention, element_bytes=element_bytes, learning=learning)
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    stream = BESIDE_FIRST_PRODUCTS + len(inner[-1].inputs)
    stream_bytes = stream * element_bytes * widths[block.operations[index].inputs[0]]
    half_bytes = element_bytes * widths[inner[-1].inputs[0]]
    return replace(
        saved, sequence_bytes=saved.sequence_bytes + stream_bytes, tensor_bytes=saved.tensor_bytes + half_bytes
    )


def adapter_cast_bytes(block: Block, kernels: Kernels, casts: Mapping[str, int], element_bytes: int) -> int:
    """Return what is live a token beside all that a layer saves, as its last matrix's adapter has its input in fp32.

    That input in both widths, the feed-forward's input, both products, the scaled one and their sum; the residual,
    where the norm keeps no more of it than a copy in fp32. A dropout leaves what it gives in fp32 beside what is kept
    of that. Nothing where that matrix has no adapter.
    """
    products = [op for op in block.operations if op.kind is OperationKind.MATMUL]
    if not products or products[-1].name.startswith("expert") or not casts.get(products[-1].inputs[0]):
        return 0
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    has_fp32_copy = kernels.norm_keeps_fp32 and not has_layer_norms(block)
    tokens_wide = CAST_BESIDE_TENSORS + has_fp32_copy
    narrow = FP32_BYTES if kernels.adapter_dropout_bytes else element_bytes
    cast = (FP32_BYTES + narrow) * widths[products[-1].inputs[0]]
    return cast + tokens_wide * element_bytes * checkpoint_width(block)


def beside_second_run(block: Block, element_bytes: int) -> int:
    """Return what is live a token at the end of a second run under autocast, beside all that it saves.

    The gradients of the stream, in fp32, and of what the last half added to it, in 16 bits. The last norm's output,
    which the run still holds uncast: in fp32 if the norm reads the stream, in 16 bits after a half. The stream between
    the halves, where no norm keeps it. The run stops at the last tensor that is to be saved (torch,
    utils/checkpoint.py, `_StopRecomputationError`).
    """
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    norms = [op for op in block.operations if op.kind is OperationKind.NORM and not op.heads]
    stream = [RESIDUAL, *(op.output for op in block.operations if op.kind is OperationKind.ADD)]
    if not norms:
        return 0
    last = norms[-1]
    output_bytes = FP32_BYTES if last.inputs[0] in stream else element_bytes
    read = {name for op in norms for name in op.inputs}
    between = sum(widths[name] for name in stream[1:-1] if name not in read)
    gradients = (FP32_BYTES + element_bytes) * checkpoint_width(block)
    return gradients + output_bytes * widths[last.inputs[0]] + FP32_BYTES * between


def copied_halves_bytes(block: Block, kernels: Kernels, element_bytes: int) -> int:
    """Return what is live a token beside all that a layer saves as its gate and its other half are copied.

    That is the product of the one matrix that writes both, which Liger's kernel takes apart in one piece each.
    Source: Liger-Kernel 0.8.5, ops/swiglu.py and ops/utils.py (`ensure_contiguous`).
    """
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    gates = [op.inputs[0] for op in block.operations if op.kind is OperationKind.GATED_ACTIVATION]
    if not gates or not (kernels.works_in_place and kernels.transformers_modules):
        return 0
    both = 2 * widths[gates[-1]]
    are_joined = any(weight.part is Part.FEED_FORWARD and weight.shape[0] == both for weight in block.weights)
    return element_bytes * both if are_joined else 0


def sums_beside_kept(block: Block, kernels: Kernels, *, autocast: bool) -> int:
    """Return how many tensors as wide as the stream stand beside what a layer keeps at its forward pass's end.

    The last product, its sum with the stream, and the stream between the halves, unless a norm keeps it as it is. Where
    both halves are added to the stream at once, two products and two sums.
    """
    kinds = [operation.kind for operation in block.operations]
    first_sum = kinds.index(OperationKind.ADD) if OperationKind.ADD in kinds else 0
    if OperationKind.NORM not in kinds[first_sum:]:
        return TENSORS_OF_PARALLEL_HALVES
    upcasts = kernels.norm_keeps_fp32 and not has_layer_norms(block) and not autocast
    return 2 + upcasts


def keeps_input(block: Block, kernels: Kernels, *, learning: frozenset[str] | None, autocast: bool) -> bool:
    """Return whether a layer saves its input as it is, so that a second run does not hold it besides.

    A norm does so unless it is written in separate operations and casts 16 bits up, a matrix that learns unless
    autocast casts the input down.
    """
    upcasts = kernels.norm_keeps_fp32 and not has_layer_norms(block) and not autocast
    readers = [operation for operation in block.operations if RESIDUAL in operation.inputs]
    if any(operation.kind is OperationKind.NORM for operation in readers):
        return not upcasts
    matrices = [operation.name for operation in readers if operation.kind is OperationKind.MATMUL]
    return not autocast and any(learning is None or name in learning for name in matrices)


def saved_with_and_without_input_gradient(
    block: Block, kernels: Kernels, *, attention: str, element_bytes: int, learning: frozenset[str]
) -> tuple[SavedBytes, SavedBytes]:
    """Return what a layer saves, and what it saves as the first one behind a frozen embedding.

    Before the first adapter nothing needs a gradient there, so that autograd saves nothing.
    """
    first = replace(block, operations=_differentiated(block, learning))
    whole, needed = (
        saved_bytes(part, kernels, attention=attention, element_bytes=element_bytes, learning=learning)
        for part in (block, first)
    )
    return whole, needed


def _differentiated(block: Block, learning: frozenset[str]) -> tuple[Operation, ...]:
    """Return the operations whose output needs a gradient where the layer's input needs none."""
    needing: set[str] = set()
    chosen = []
    for operation in block.operations:
        if operation.name in learning or needing.intersection(operation.inputs):
            chosen.append(operation)
            needing.add(operation.output)
    return tuple(chosen)


def _attention(block: Block) -> int | None:
    """Return where the layer's attention stands, None where it has none."""
    attentions = attentions_of(block)
    return block.operations.index(attentions[0]) if attentions else None


def _last_norm(block: Block) -> int | None:
    """Return where a norm of a whole token stands behind the last matrix product, None where none does."""
    kinds = [operation.kind for operation in block.operations]
    last = len(kinds) - 1 - kinds[::-1].index(OperationKind.MATMUL) if OperationKind.MATMUL in kinds else len(kinds)
    behind = (index for index in range(last, len(kinds)) if kinds[index] is OperationKind.NORM)
    return next(behind, None)


def _second_norm(block: Block) -> int | None:
    """Return where the last norm of a whole token stands that matrix products come both before and after."""
    kinds = [operation.kind for operation in block.operations]
    for index in reversed(range(len(kinds))):
        is_norm = kinds[index] is OperationKind.NORM and not block.operations[index].heads
        if is_norm and OperationKind.MATMUL in kinds[:index] and OperationKind.MATMUL in kinds[index + 1 :]:
            return index
    return None
