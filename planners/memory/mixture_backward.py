"""The events of a mixture that other layers do not have: of its backward pass, and of a forward pass in fp32.

Traced operation by operation over transformers 5.23's mixtures (integrations/moe.py, `grouped_mm_experts_forward`).
"""

from __future__ import annotations

from dataclasses import replace

from plimsoll.planners.architecture import Block
from plimsoll.planners.memory.activations import (
    EXPERT_TENSORS,
    NOTHING_SAVED,
    SavedBytes,
    checkpoint_width,
    saved_bytes,
)
from plimsoll.planners.memory.latents import weight_bytes
from plimsoll.planners.stacks.records import Kernels

DISPATCHED, EXPERT_OUTPUT, EXPERT_PRODUCT = "dispatched", "expert_output", "expert_product"
# What an expert's first matrices write: the gate and the other half, or one tensor without a gate.
FIRST_OUTPUTS = ("expert_gate", "expert_up", "expert_inner")
# The gradient of the experts' outputs in the tokens' order, the zeros that it is scattered into, and the sum of both.
COMBINE_GRADIENTS = 3
# In Megatron-Core that of the outputs as they were received, and as they were sent (moe_utils.py, `unpermute`).
GROUPED_COMBINE_GRADIENTS = 2
# Beside what a layer saves, as its second run brings tokens back from other ranks: the gradient of the weighted sum,
# the tokens sent, the experts' outputs, and those in the order in which the tokens came (torchtitan,
# distributed/expert_parallel.py, `_token_combine`).
TENSORS_BESIDE_RETURNED = 4
SHARED_TENSORS = ("shared_gate", "shared_up", "shared_inner", "shared_product")
# The residual before the feed-forward, and the gradient of the layer's output.
RESIDUALS_BESIDE_RETURNED = 2
# Megatron-Core's `custom_forward` holds a rank's own tokens as they were permuted and as they were sent, and what
# shared experts made, to its end, `routed_experts_compute` the experts' outputs as they were made and as they go back
# (moe_layer.py).
GROUPED_OWN_TOKENS, GROUPED_OUTPUTS = 2, 2
# As the product of an expert's gate and its other half is differentiated: three gradients, less the product itself.
MEETING_IN_EXPERTS = 2


def are_grouped(kernels: Kernels) -> bool:
    """Return whether experts are Transformer Engine's grouped product between Megatron-Core's own dispatches."""
    return kernels.transformer_engine


def live_at_combine(
    block: Block, saved: SavedBytes, kernels: Kernels, element_bytes: int, weighted_bytes: int
) -> SavedBytes:
    """Return a layer's live bytes as its experts' outputs are scattered back to their experts.

    `saved` is all that the layer saves, `weighted_bytes` are those of an element of the outputs once they are weighted.
    Nothing for a layer without a mixture.
    """
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    if DISPATCHED not in widths:
        return NOTHING_SAVED
    gradients = GROUPED_COMBINE_GRADIENTS if are_grouped(kernels) else COMBINE_GRADIENTS
    return replace(
        saved,
        sequence_bytes=saved.sequence_bytes + element_bytes * checkpoint_width(block),
        dispatched_bytes=saved.dispatched_bytes + gradients * weighted_bytes * widths[DISPATCHED],
    )


def beside_combined_tokens(block: Block, kernels: Kernels, element_bytes: int) -> SavedBytes:
    """Return what stands beside all that a layer saves as its second run brings tokens back from their experts.

    They come from other ranks; Megatron-Core's are sorted on one rank too, where the permuted tokens are those sent.
    Nothing for a layer without a mixture.
    """
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    if DISPATCHED not in widths:
        return NOTHING_SAVED
    sent = element_bytes * widths[DISPATCHED]
    if are_grouped(kernels):
        has_shared = any(name in widths for name in SHARED_TENSORS)
        own = GROUPED_OWN_TOKENS * sent + has_shared * element_bytes * checkpoint_width(block)
        return replace(NOTHING_SAVED, sequence_bytes=float(own), dispatched_bytes=float(GROUPED_OUTPUTS * sent))
    residuals = RESIDUALS_BESIDE_RETURNED * element_bytes * checkpoint_width(block)
    beside = float(TENSORS_BESIDE_RETURNED * sent)
    return replace(NOTHING_SAVED, sequence_bytes=float(residuals), dispatched_bytes=beside)


def beside_weighed_outputs(block: Block, kernels: Kernels, element_bytes: int) -> tuple[int, int]:
    """Return what stands beside a layer's forward pass as outputs weighed in fp32 go back to the order of the tokens.

    That is both of these, beside all that the layer saves but its shared experts' tensors, which are not there yet;
    or, of a layer that is recomputed and saves nothing, beside the tokens as they were sent, the experts' outputs and
    the layer's input. Zeros where outputs are weighed in the format of the products, of which the backward pass holds
    more.
    """
    weighed = weight_bytes(block, kernels, element_bytes)
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    if DISPATCHED not in widths or weighed == element_bytes:
        return 0, 0
    both = 2 * weighed * widths[DISPATCHED]
    shared = element_bytes * sum(widths.get(name, 0) for name in SHARED_TENSORS)
    recomputed = element_bytes * (2 * widths[DISPATCHED] + checkpoint_width(block))
    return max(both - shared, 0), both + recomputed


def grouped_sent_bytes(block: Block, kernels: Kernels, element_bytes: int) -> int:
    """Return the bytes of each token as Megatron-Core sends it, once for each of its experts; 0 elsewhere."""
    sent = sum(tensor.width for tensor in block.tensors if tensor.name == DISPATCHED)
    return element_bytes * sent if are_grouped(kernels) else 0


def live_at_experts_last_product(
    block: Block, kernels: Kernels, *, attention: str, element_bytes: int
) -> SavedBytes | None:
    """Return a layer's live bytes at its experts' last product, or just after; None where they do not work at once.

    The outputs have been let go of with the weighted sum that saved them. Their gradient stands beside that of the
    product of the experts' halves; then, without it, the gradients of the halves beside that. The worse of the two.
    """
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    if DISPATCHED not in widths or kernels.experts_in_turn:
        return None
    without = frozenset((EXPERT_OUTPUT,))
    saved = saved_bytes(block, kernels, attention=attention, element_bytes=element_bytes, without=without)
    saved = replace(saved, sequence_bytes=saved.sequence_bytes + element_bytes * checkpoint_width(block))
    of_outputs, of_product = element_bytes * widths[DISPATCHED], element_bytes * widths[EXPERT_PRODUCT]
    if of_outputs + of_product < MEETING_IN_EXPERTS * of_product:
        return replace(saved, expert_bytes=saved.expert_bytes + MEETING_IN_EXPERTS * of_product)
    return replace(
        saved,
        dispatched_bytes=saved.dispatched_bytes + of_outputs,
        expert_bytes=saved.expert_bytes + of_product,
    )


def live_at_expert_reduction(block: Block, saved: SavedBytes, element_bytes: int) -> SavedBytes:
    """Return a layer's live bytes as its experts' gradients are reduced, in a unit of their own.

    The experts' tensors have been let go of; the residual's gradient and that of the tokens sent, summed back to
    where they came from, wait for the rest of the layer. `saved` is all that the layer saves. Nothing for a layer
    without a mixture.
    """
    if all(tensor.name != DISPATCHED for tensor in block.tensors):
        return NOTHING_SAVED
    return replace(
        saved,
        sequence_bytes=saved.sequence_bytes + 2 * element_bytes * checkpoint_width(block),
        dispatched_bytes=0.0,
        expert_bytes=0.0,
    )


def live_at_experts_first_product(block: Block, kernels: Kernels, *, attention: str, element_bytes: int) -> SavedBytes:
    """Return a layer's live bytes while the gradient of its experts' first matrices is made; nothing without any.

    One product is differentiated for all experts (torch, `_grouped_mm`). Within the
    experts all has been let go of by then but the gradient of what the first
    matrices wrote; beside it stand the tokens as they were sent, their gradient, and
    the residual's.
    """
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    if DISPATCHED not in widths:
        return NOTHING_SAVED
    let_go = frozenset((*EXPERT_TENSORS, EXPERT_OUTPUT))
    saved = saved_bytes(block, kernels, attention=attention, element_bytes=element_bytes, without=let_go)
    return replace(
        saved,
        sequence_bytes=saved.sequence_bytes + element_bytes * checkpoint_width(block),
        dispatched_bytes=saved.dispatched_bytes + element_bytes * widths[DISPATCHED],
        expert_bytes=saved.expert_bytes + element_bytes * sum(widths.get(name, 0) for name in FIRST_OUTPUTS),
    )
