"""What Megatron-Core's attention keeps and holds where no flash kernel runs (`--attention-backend unfused`).

Scores are tensors, keys and values are there for each query head, and where no heads are shared the values are a view
of the product that wrote queries and keys as well. The softmax is one kernel over 16 bits for most shapes, which writes
its gradient over the one that it is given; elsewhere it is torch's, in fp32, behind a mask.

Source: Transformer Engine, attention/dot_product_attention/backends.py (`UnfusedDotProductAttention`) and softmax.py
(`FusedScaleMaskSoftmax`); Megatron-Core 0.16.1, transformer/dot_product_attention.py and fusions/fused_softmax.py.
"""

from __future__ import annotations

import numpy as np

from plimsoll.planners.architecture import Block, Operation
from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.layouts.candidates import BoolArray, Candidates
from plimsoll.planners.memory.eager_attention import EAGER, MASK_BYTES, attentions_of, save_repeated_heads
from plimsoll.planners.stacks.records import Kernels

# As torch's softmax is differentiated in fp32: its result, and the gradients of that and of the scores. Where nothing
# was cast the mask was written into a view: the scores' gradient, two copies of it and the masked one.
BEHIND_CAST_TENSORS, BEHIND_VIEW_TENSORS = 3, 4
# The sequences that the kernel takes are between these lengths and multiples of one, of so many heads in all.
SHORTEST, LONGEST, LENGTH_MULTIPLE, HEADS_MULTIPLE = 16, 16384, 8, 4


def is_unfused(attention: str, kernels: Kernels) -> bool:
    """Return whether scores are tensors that Transformer Engine makes."""
    return attention == EAGER and kernels.transformer_engine


def lacks_kernel(layouts: Candidates, heads: int, sequence_length: int, element_bytes: int) -> BoolArray:
    """Return where the softmax of a rank's heads is torch's."""
    of_all_sequences = layouts.micro_batch_size * (heads // layouts.tensor_parallel)
    has_length = SHORTEST < sequence_length < LONGEST and sequence_length % LENGTH_MULTIPLE == 0
    takes_none = element_bytes == FP32_BYTES or not has_length
    lacking: BoolArray = np.asarray((of_all_sequences % HEADS_MULTIPLE != 0) | takes_none)
    return lacking


def save_operands(block: Block, saved: dict[str, float], element_bytes: int) -> None:
    """Count keys and values for each query head, or values with the product that they are a view of."""
    save_repeated_heads(block, saved, element_bytes)
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    for operation in attentions_of(block):
        value = operation.inputs[-1]
        if widths[value]:  # none where a layer attends to another one's values (Gemma 3n)
            saved[value] += unrotated_bytes(block, operation, element_bytes) / widths[value]


def unrotated_bytes(block: Block, attention: Operation, element_bytes: int) -> int:
    """Return what of a token the values hold as a view, of no heads that are shared: queries and keys unrotated."""
    if _repeated_features(block, attention) or attention.key_dim != attention.value_dim:
        return 0
    return element_bytes * (_product_width(block, attention) - attention.heads * attention.value_dim)


def plain_backward_bytes(element_bytes: int) -> int:
    """Return what is live of each score of a head as torch's softmax is differentiated."""
    return FP32_BYTES * (BEHIND_VIEW_TENSORS if element_bytes == FP32_BYTES else BEHIND_CAST_TENSORS)


def repeated_operands_bytes(block: Block, element_bytes: int) -> int:
    """Return what of a token keys and values take for each query head, where heads are shared."""
    shared = (operation for operation in attentions_of(block) if _repeated_features(block, operation))
    return element_bytes * sum(operation.heads * (operation.key_dim + operation.value_dim) for operation in shared)


def recomputed_inputs_bytes(block: Block, element_bytes: int) -> int:
    """Return what of a token a recomputed attention keeps instead: keys, and the product that values are a view of."""
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    shared = (operation for operation in attentions_of(block) if _repeated_features(block, operation))
    return element_bytes * sum(_product_width(block, op) + widths[op.inputs[1]] for op in shared)


def beside_plain_softmax_bytes(block: Block, element_bytes: int) -> int:
    """Return what of a token a recomputed attention holds besides as torch's softmax is differentiated.

    Its inputs to the end, its output, and that one's gradient (`CheckpointFunction`).
    """
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    attentions = attentions_of(block)
    viewed = sum(_product_width(block, op) for op in attentions if not _repeated_features(block, op))
    outputs = 2 * sum(widths[operation.output] for operation in attentions)
    return recomputed_inputs_bytes(block, element_bytes) + element_bytes * (viewed + outputs)


def _product_width(block: Block, attention: Operation) -> int:
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    return sum(widths[name] for name in attention.inputs)


def _repeated_features(block: Block, attention: Operation) -> int:
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    return attention.heads * attention.value_dim - widths[attention.inputs[-1]]


def behind_kernel_bytes(block: Block, element_bytes: int) -> int:
    """Return what is kept of each pair of positions where the softmax is one kernel."""
    return sum(op.heads * kept_score_bytes(op, element_bytes) for op in attentions_of(block))


def kept_score_bytes(attention: Operation, element_bytes: int) -> int:
    """Return what is kept of each score of a head behind the kernel: its result, and what a dropout makes of it."""
    return element_bytes + attention.drops_out * (MASK_BYTES + element_bytes)


def kept_besides_bytes(attention: Operation, element_bytes: int) -> int:
    """Return what is kept of each score besides where the softmax is torch's: its result in fp32, beside the cast."""
    if element_bytes == FP32_BYTES:
        return 0
    return FP32_BYTES - attention.drops_out * element_bytes
