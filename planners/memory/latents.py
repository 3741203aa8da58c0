"""What latent attention (DeepSeek V2 and V3) saves beside what its operations tell.

Traced operation by operation over transformers 5.23 (models/deepseek_v3/modeling_deepseek_v3.py, `DeepseekV3Attention`,
`DeepseekV3TopkRouter`) and Megatron-Core 0.16.1 (transformer/multi_latent_attention.py).
"""

from __future__ import annotations

from plimsoll.planners.architecture import Block, OperationKind
from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.stacks.records import Kernels

# What the architecture calls the scores by which an indexer chooses what attention reads.
INDEXER = "index_scores"
QUERY_LATENT, KEY_VALUE_LATENT, ROUTER = "query_latent", "key_value_latent", "router"


def save_latents(
    block: Block, saved: dict[str, float], kernels: Kernels, element_bytes: int, learning: frozenset[str] | None
) -> None:
    """Count the norms of both latents, the value as a view, and the router's input in fp32.

    `saved` has bytes for each element of every tensor. The value is a view of the up projection's output, which holds
    the keys without position as well.
    """
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    if KEY_VALUE_LATENT not in widths:
        return
    norm_bytes = (FP32_BYTES if kernels.norm_keeps_fp32 else 0) + (element_bytes if learning is None else 0)
    for operation in block.operations:
        if operation.kind is OperationKind.ATTENTION and operation.name != INDEXER:
            value, up = operation.inputs[-1], _up_width(block)
            saved[value] = element_bytes * up / widths[value]
        elif operation.kind is not OperationKind.MATMUL or operation.matmul_shape is None:
            continue
        elif operation.inputs[0] in (QUERY_LATENT, KEY_VALUE_LATENT):
            # Of keys and values the rank alone is normalized, and multiplied.
            latent, rank = operation.inputs[0], operation.matmul_shape[0]
            saved[latent] = (saved.get(latent, 0.0) + norm_bytes) * rank / widths[latent]
        elif operation.name == ROUTER and (learning is None or ROUTER in learning):
            saved[operation.inputs[0]] = saved.get(operation.inputs[0], 0.0) + FP32_BYTES


def save_normed_latents(block: Block, saved: dict[str, float], element_bytes: int) -> None:
    """Count what Transformer Engine's norms of both latents save beside their outputs: inputs of their own.

    `saved` has bytes for each element of every tensor. Of keys and values the rank alone is copied for its norm, and
    the product that it was part of is gone.
    """
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    for operation in block.operations:
        if operation.matmul_shape is not None and operation.inputs[0] in (QUERY_LATENT, KEY_VALUE_LATENT):
            latent, rank = operation.inputs[0], operation.matmul_shape[0]
            saved[latent] = (saved.get(latent, 0.0) + element_bytes) * rank / widths[latent]


def weight_bytes(block: Block, kernels: Kernels, element_bytes: int) -> int:
    """Return the bytes of an element of experts' outputs once weighted: routers like DeepSeek's weigh in fp32."""
    has_latent = any(tensor.name == KEY_VALUE_LATENT for tensor in block.tensors)
    weighs = any(op.in_fp32 and op.kind is OperationKind.ROUTING for op in block.operations)
    return FP32_BYTES if (has_latent or weighs) and kernels.transformers_modules else element_bytes


def _up_width(block: Block) -> int:
    """Return the features of keys without position and values together."""
    up = next(op for op in block.operations if op.inputs == (KEY_VALUE_LATENT,) and op.matmul_shape is not None)
    return up.matmul_shape[1] if up.matmul_shape is not None else 0
