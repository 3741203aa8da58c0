"""What attention keeps and holds where no flash kernel runs: eager attention's scores, one for each pair of positions.

Source: transformers 5.23, models/llama/modeling_llama.py, `eager_attention_forward` and `repeat_kv`, which other
families copy, and masking_utils.py, `eager_mask`. A family's own caps, dropouts and widths are in its operations
(`planners/families/reading/own_code.py`).
"""

from __future__ import annotations

from plimsoll.planners.architecture import Block, Operation, OperationKind
from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.memory.latents import INDEXER
from plimsoll.planners.stacks.records import Kernels

EAGER = "eager"
# torch's mask of a dropout (aten/src/ATen/native/cuda/Dropout.cu: a bool an element).
MASK_BYTES = 1
# As a softmax is differentiated: its result, and the gradients of that and of the scores.
SOFTMAX_BACKWARD_TENSORS = 3


def has_scores(attention: str, kernels: Kernels) -> bool:
    """Return whether scores are tensors that transformers' own code makes."""
    return attention == EAGER and kernels.transformers_modules


def attentions_of(block: Block) -> list[Operation]:
    """Return the attentions of a layer, without an indexer that only chooses what they read."""
    return [op for op in block.operations if op.kind is OperationKind.ATTENTION and op.name != INDEXER]


def kept_score_bytes(attention: Operation, element_bytes: int, *, autocast: bool = False) -> int:
    """Return what is kept of each score of a head.

    The softmax's result in fp32 and, for the product with the values, again in the compute precision; a cap's result;
    of a dropout the mask, and what it leaves in place of what it was given. On a GPU autocast runs every softmax in
    fp32 (torch, aten/src/ATen/autocast_mode.h, `AT_FORALL_FP32_SET_OPT_DTYPE`), a CPU's does not.
    """
    of_softmax = FP32_BYTES if autocast else softmax_bytes(attention, element_bytes)
    kept = of_softmax + attention.caps_scores * element_bytes
    if attention.drops_out:
        return kept + element_bytes + MASK_BYTES
    return kept if of_softmax == element_bytes else kept + element_bytes


def softmax_backward_bytes(attention: Operation, element_bytes: int) -> int:
    """Return what is live of each score of a head while its softmax is differentiated, beside what a cap keeps."""
    of_softmax = softmax_bytes(attention, element_bytes)
    return SOFTMAX_BACKWARD_TENSORS * of_softmax + attention.caps_scores * element_bytes


def returned_score_bytes(block: Block, kernels: Kernels, *, attention: str, element_bytes: int) -> int:
    """Return what is live of each pair of positions besides where activations come back from the host.

    That is what the product with the values kept: what has been brought back for a node is let go of once the next one
    has run (TRL 1.16, trl/models/activation_offloading.py, `unpack_tensor_with_streams`).
    """
    if not has_scores(attention, kernels):
        return 0
    return element_bytes * sum(operation.heads for operation in attentions_of(block))


def mask_bytes(block: Block, kernels: Kernels, *, attention: str, element_bytes: int) -> int:
    """Return the bytes of the mask for each pair of positions: one for all heads, which is added to their scores.

    It is an argument of every layer, which one that is to run again holds.
    """
    return element_bytes if has_scores(attention, kernels) and attentions_of(block) else 0


def save_repeated_heads(
    block: Block, saved: dict[str, float], element_bytes: int, *, single_is_view: bool = False
) -> None:
    """Count keys and values as often as query heads share them; `saved` has bytes for each element of every tensor.

    A single head that all share can be repeated as a view (torchtune, modules/attention.py: `expand` and `flatten`);
    those of another layer are not the block's to save.
    """
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    for operation in attentions_of(block):
        for name, dim in zip(operation.inputs[1:], (operation.key_dim, operation.value_dim), strict=False):
            if not widths[name] or (single_is_view and widths[name] == dim):
                continue
            repeated = element_bytes * operation.heads * dim / widths[name]
            saved[name] = max(saved.get(name, 0.0), repeated)


def save_of_fp32_kernel(block: Block, saved: dict[str, float], element_bytes: int) -> None:
    """Count what torch's memory-efficient kernel saves, the only one that takes 32 bits: no heads are shared.

    Its output has tokens before heads whatever its inputs have, so that the next matrix takes it as it is. Source:
    torch, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, `can_use_flash_attention`.
    """
    save_repeated_heads(block, saved, element_bytes)
    saved.update({operation.output: float(element_bytes) for operation in attentions_of(block)})


def save_copied_output(
    block: Block, saved: dict[str, float], element_bytes: int, learning: frozenset[str] | None
) -> None:
    """Count attention's output as the next matrix saves it, a contiguous copy: the product itself saves none."""
    for operation in attentions_of(block):
        saved.pop(operation.output, None)
        if any(
            op.kind is OperationKind.MATMUL
            and operation.output in op.inputs
            and (learning is None or op.name in learning)
            for op in block.operations
        ):
            saved[operation.output] = float(element_bytes)


def softmax_bytes(attention: Operation, element_bytes: int) -> int:
    """Return the bytes of an element of the softmax's result."""
    return FP32_BYTES if attention.softmax_in_fp32 else element_bytes
