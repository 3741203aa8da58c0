"""What Transformer Engine's attention holds twice: its kernel wants batches first, all about it is sequence first.

Source: Transformer Engine, attention/dot_product_attention/backends.py, `FlashAttention.forward`, and utils.py,
`get_attention_backend`, of heads whose values have another length than their keys; Megatron-Core 0.16.1,
transformer/attention.py, `get_query_key_value_tensors`.
"""

from __future__ import annotations

from plimsoll.planners.architecture import Block
from plimsoll.planners.memory.eager_attention import EAGER, attentions_of
from plimsoll.planners.stacks.records import Kernels


def copied_output_bytes(block: Block, kernels: Kernels, *, attention: str, element_bytes: int) -> int:
    """Return what a token's copy of the attention's output takes, which a micro-batch of several sequences has.

    The kernel keeps the output batch first, the matrix behind it sequence first; of one sequence both are the same.
    Latent attention's is cuDNN's, which takes all as it is.
    """
    if not kernels.transformer_engine or attention == EAGER:
        return 0
    plain = (operation for operation in attentions_of(block) if operation.key_dim == operation.value_dim)
    return element_bytes * sum(operation.heads * operation.value_dim for operation in plain)


def exchanged_output_bytes(
    block: Block, kernels: Kernels, *, element_bytes: int, without: frozenset[str] = frozenset()
) -> int:
    """Return what a token's output of attention takes as it was before ranks took tokens for heads again.

    The kernel keeps its part of the heads, of all their tokens, and the matrix behind it all heads of its own tokens:
    as much, in another tensor. Source: Transformer Engine, attention/dot_product_attention/context_parallel.py,
    `AttnFuncWithCPAndKVP2P` and `AttnFuncWithCPAndQKVOA2A` (`out_part`).
    """
    if not kernels.transformer_engine:
        return 0
    kept = (operation for operation in attentions_of(block) if operation.output not in without)
    return element_bytes * sum(operation.heads * operation.value_dim for operation in kept)


def unrotated_bytes(block: Block, kernels: Kernels, *, attention: str, element_bytes: int) -> int:
    """Return what a token's queries and keys take as they were before their rotation.

    They are one product with the values, of which a recomputed attention keeps a view; without that the kernel keeps
    a copy of the values. Latent attention's are products of their own.
    """
    if not kernels.transformer_engine or attention == EAGER:
        return 0
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    plain = [operation for operation in attentions_of(block) if operation.key_dim == operation.value_dim]
    return element_bytes * sum(widths[name] for operation in plain for name in operation.inputs[:2])
