"""What routing saves of each token: scores, and the numbers of experts and places.

Small beside hidden states, unless experts are many: of 128 half a kilobyte a token and more.
"""

from __future__ import annotations

from plimsoll.planners.architecture import Block, OperationKind
from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.stacks.records import Kernels

INDEX_BYTES = 8  # torch's int64
MASK_BYTES = 1
# transformers 5.23, integrations/moe.py, `grouped_mm_experts_forward`: the chosen experts, their order, the tokens
# that it stands for, and the way back.
INDICES_OF_CHOSEN = 4
# Megatron-Core, core/transformer/moe: the chosen experts, and each sent token's place (`permute`).
GROUPED_INDICES_OF_CHOSEN = 2
# Scores of the chosen: as they were permuted, received and sorted by expert.
GROUPED_SCORES_OF_CHOSEN = 3
SCORES, EXPERT_PREFIX = "router_scores", "expert_"
BALANCING_BIAS = "e_score_correction_bias"
KEY_VALUE_LATENT, SHARED_SCORE = "key_value_latent", "shared_score"


def routing_bytes(block: Block, kernels: Kernels, element_bytes: int) -> int:
    """Return what a token's routing saves for the backward pass; 0 in a layer without a router.

    transformers' softmax is over all experts, in fp32, and its scores of the chosen ones in 16 bits. Of all experts
    Megatron saves the scores and the map out of which the chosen are selected (`permute` without
    `--moe-permute-fusion`), and what scored them (`_scoring_bytes`).
    """
    experts, chosen = _sizes(block)
    if kernels.transformer_engine:
        size = score_bytes(block, element_bytes)
        each = GROUPED_INDICES_OF_CHOSEN * INDEX_BYTES + GROUPED_SCORES_OF_CHOSEN * size
        return experts * (size + MASK_BYTES) + chosen * each + _scoring_bytes(block, experts, chosen)
    return experts * FP32_BYTES + chosen * (INDICES_OF_CHOSEN * INDEX_BYTES + element_bytes)


def score_bytes(block: Block, element_bytes: int) -> int:
    """Return the bytes of one of Megatron's scores: those of a router that a bias balances are in fp32.

    Source: Megatron-LM's launch files of such models (`--moe-router-dtype fp32`).
    """
    return FP32_BYTES if _is_balanced(block) else element_bytes


def _scoring_bytes(block: Block, experts: int, chosen: int) -> int:
    """Return what a token's scores are differentiated by, in fp32.

    That is the sigmoid of all experts, the scores of the chosen and their sum; the softmax of all experts where it
    comes first, as of DeepSeek V2 and Qwen2-MoE (`--moe-router-pre-softmax`); else that of the chosen ones.
    Source: Megatron-Core 0.16.1, transformer/moe/moe_utils.py, `topk_routing_with_score_function`.
    """
    if not experts:
        return 0
    if _is_balanced(block):
        return FP32_BYTES * (experts + chosen + 1)
    is_of_all = any(tensor.name in (KEY_VALUE_LATENT, SHARED_SCORE) for tensor in block.tensors)
    return FP32_BYTES * (experts if is_of_all else chosen)


def _is_balanced(block: Block) -> bool:
    return any(weight.name.endswith(BALANCING_BIAS) for weight in block.weights)


def save_router_input(block: Block, saved: dict[str, float], learning: frozenset[str] | None) -> None:
    """Count the copy in fp32 that a router saves of its input; `saved` has bytes for each element of every tensor."""
    for operation in block.operations:
        learns = learning is None or operation.name in learning
        if operation.in_fp32 and operation.kind is OperationKind.MATMUL and learns:
            saved[operation.inputs[0]] = saved.get(operation.inputs[0], 0.0) + FP32_BYTES


def latest_routing_bytes(block: Block, kernels: Kernels, element_bytes: int) -> int:
    """Return what a layer remembers of each token of its latest micro-batch: Megatron's scores and map of all experts.

    Source: Megatron-Core, core/transformer/moe/token_dispatcher.py, `MoEAlltoAllTokenDispatcher` (`probs`,
    `routing_map`).
    """
    return _sizes(block)[0] * (score_bytes(block, element_bytes) + MASK_BYTES) if kernels.transformer_engine else 0


def _sizes(block: Block) -> tuple[int, int]:
    """Return how many experts a layer has, and how many work on a token; zeros for a dense layer."""
    experts = sum(tensor.width for tensor in block.tensors if tensor.name == SCORES)
    copies = [op.copies for op in block.operations if op.name.startswith(EXPERT_PREFIX)]
    is_mixture = experts and any(op.kind is OperationKind.ROUTING for op in block.operations)
    return (experts, max(copies)) if is_mixture else (0, 0)
