"""The moments of a mixture's backward pass that other layers do not have.

Traced operation by operation over transformers 5.23's mixtures (integrations/moe.py, `grouped_mm_experts_forward`).
"""

from __future__ import annotations

from dataclasses import replace

from planners.architecture import Block
from planners.memory.activations import EXPERT_TENSORS, KeptBytes, checkpoint_width, kept_bytes
from planners.memory.profile import Kernels

DISPATCHED, EXPERT_OUTPUT = "dispatched", "expert_output"
# What an expert's first matrices write: the gate and the other half, or one tensor without a gate.
FIRST_OUTPUTS = ("expert_gate", "expert_up", "expert_inner")
# The gradient of the experts' outputs in the tokens' order, the zeros that it is scattered into, and the sum of both.
COMBINE_GRADIENTS = 3
NOTHING_KEPT = KeptBytes(gathered_bytes=0.0, sequence_bytes=0.0, tensor_bytes=0.0, score_bytes=0.0)


def kept_at_combine(block: Block, kept: KeptBytes, element_bytes: int, weighted_bytes: int) -> KeptBytes:
    """Return what of a layer is there as its experts' outputs are scattered back to their experts.

    `kept` is all that the layer keeps, `weighted_bytes` are those of an element of the outputs once they are weighted.
    Nothing for a layer without a mixture.
    """
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    if DISPATCHED not in widths:
        return NOTHING_KEPT
    return replace(
        kept,
        sequence_bytes=kept.sequence_bytes + element_bytes * checkpoint_width(block),
        dispatched_bytes=kept.dispatched_bytes + COMBINE_GRADIENTS * weighted_bytes * widths[DISPATCHED],
    )


def kept_as_experts_are_reduced(block: Block, kept: KeptBytes, element_bytes: int) -> KeptBytes:
    """Return what of a layer is there as its experts' gradients are reduced, in a unit of their own.

    The experts' tensors have been let go of; the residual's gradient and that of the tokens sent, summed back to
    where they came from, wait for the rest of the layer. `kept` is all that the layer keeps. Nothing for a layer
    without a mixture.
    """
    if all(tensor.name != DISPATCHED for tensor in block.tensors):
        return NOTHING_KEPT
    return replace(
        kept,
        sequence_bytes=kept.sequence_bytes + 2 * element_bytes * checkpoint_width(block),
        dispatched_bytes=0.0,
        expert_bytes=0.0,
    )


def kept_at_experts_first_product(block: Block, kernels: Kernels, *, attention: str, element_bytes: int) -> KeptBytes:
    """Return what of a layer is there while the gradient of its experts' first matrices is made; nothing without any.

    One product is differentiated for all experts (torch, `_grouped_mm`). Within the
    experts all has been let go of by then but the gradient of what the first
    matrices wrote; beside it stand the tokens as they were sent, their gradient, and
    the residual's.
    """
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    if DISPATCHED not in widths:
        return NOTHING_KEPT
    let_go = frozenset((*EXPERT_TENSORS, EXPERT_OUTPUT))
    kept = kept_bytes(block, kernels, attention=attention, element_bytes=element_bytes, without=let_go)
    return replace(
        kept,
        sequence_bytes=kept.sequence_bytes + element_bytes * checkpoint_width(block),
        dispatched_bytes=kept.dispatched_bytes + element_bytes * widths[DISPATCHED],
        expert_bytes=kept.expert_bytes + element_bytes * sum(widths.get(name, 0) for name in FIRST_OUTPUTS),
    )
