"""The names and shapes of published checkpoints, where they are not those that transformers saves."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

# Qwen3.5's bf16 checkpoints hold experts stacked, as transformers does in memory; saved, each has tensors of its own.
STACKED = frozenset({"qwen3_5_moe", "qwen3_5_moe_text"})
# Qwen3-VL's hold them stacked and transposed, as transformers 4.57 did; 5 turns them on reading and not back.
TRANSPOSED = frozenset({"qwen3_vl_moe"})
EXPERTS = re.compile(r"\.experts\.\w+$")
# Names of which several become one on reading, so that saving cannot tell them apart.
RENAMED: Mapping[str, tuple[tuple[str, str], ...]] = {
    "kimi_linear": ((r"\.block_sparse_moe\.(gate_proj|up_proj|down_proj)", r".mlp.\1"),),
    "deepseek_v4": (
        (r"^model\.", ""),
        (r"^embed_tokens\.", "embed."),
        (r"^lm_head\.", "head."),
        (r"^hc_head\.hc_", "hc_head_"),
        (r"\.attn\.norm\.", ".attn.kv_norm."),
    ),
    # Its towers keep the level that others' lose.
    "minimax_m3_vl": ((r"^vision_tower\.vision_model\.", "vision_tower."),),
    "kimi_k25": (
        (r"^language_model\.model\.blocks\.", "language_model.model.layers."),
        (r"^vision_tower\.encoder\.patch_embed\.", "vision_tower.patch_embed."),
        (r"^model\.mm_projector\.", "mm_projector."),
    ),
}
# Lightning attention's decays follow from the layer's and the head's index; transformers keeps them as buffers.
DERIVED = re.compile(r"\.(query_decay|key_decay|diagonal_decay|slope_rate)$")

Shapes = Mapping[str, tuple[int, ...]]


def published_shapes(model_type: str, module: PreTrainedModel) -> Shapes:
    """Return every tensor of the checkpoint of a module, tied ones once, its saved buffers included."""
    kept = set(module.state_dict())
    buffers = {name: buffer for name, buffer in module.named_buffers() if name in kept and not DERIVED.search(name)}
    tensors: dict[str, torch.Tensor] = {**dict(module.named_parameters()), **buffers}
    saved = tensors if model_type in STACKED else revert_weight_conversion(module, tensors)
    return {_renamed(model_type, name): _shape(model_type, name, tensor) for name, tensor in saved.items()}


def _renamed(model_type: str, name: str) -> str:
    for pattern, replacement in RENAMED.get(model_type, ()):
        name = re.sub(pattern, replacement, name)
    return name


def _shape(model_type: str, name: str, tensor: torch.Tensor) -> tuple[int, ...]:
    shape = tuple(tensor.shape)
    if model_type in TRANSPOSED and EXPERTS.search(name):
        return (shape[0], shape[2], shape[1])
    return shape
