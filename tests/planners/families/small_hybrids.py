"""Small configs that walk down every branch of the readers of hybrids and of the wrappers around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Sizes of which no two are equal where a swap would otherwise not show.
TEXT: Mapping[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DELTA: Mapping[str, Any] = {
    **TEXT,
    "head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 14,
    "linear_conv_kernel_dim": 3,
}
EXPERTS: Mapping[str, Any] = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 28,
}
MAMBA2: Mapping[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_n_groups": 2,
    "mamba_d_state": 6,
    "mamba_d_conv": 3,
    "mamba_expand": 2,
}
JAMBA: Mapping[str, Any] = {
    **TEXT,
    "num_hidden_layers": 5,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "num_experts": 3,
    "mamba_d_state": 6,
    "mamba_d_conv": 3,
    "mamba_dt_rank": 7,
}
NEMOTRON_H: Mapping[str, Any] = {
    **TEXT,
    "hybrid_override_pattern": "M-*EM",
    "head_dim": 12,
    "ssm_state_size": 6,
    "mamba_num_heads": 4,
    "mamba_head_dim": 10,
    "n_groups": 2,
    "conv_kernel": 3,
    "n_routed_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "moe_shared_expert_intermediate_size": 28,
}
LATENT: Mapping[str, Any] = {
    "num_key_value_heads": 8,
    "kv_lora_rank": 24,
    "q_lora_rank": 40,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 4,
    "v_head_dim": 16,
}
KIMI_LINEAR: Mapping[str, Any] = {
    **TEXT,
    **LATENT,
    "q_lora_rank": None,
    "num_experts": 5,
    "num_experts_per_token": 2,
    "moe_intermediate_size": 20,
    "num_shared_experts": 2,
    "linear_attn_config": {
        "full_attn_layers": [2],
        "kda_layers": [1, 3, 4],
        "head_dim": 6,
        "num_heads": 4,
        "short_conv_kernel_size": 3,
    },
}
DEEPSEEK: Mapping[str, Any] = {
    **TEXT,
    **LATENT,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "n_group": 2,
    "topk_group": 1,
}
FALCON_MAMBA: Mapping[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "state_size": 12,
    "conv_kernel": 3,
}
MINIMAX: Mapping[str, Any] = {**TEXT, "head_dim": 12, "num_local_experts": 3}
TOWER: Mapping[str, Any] = {
    "depth": 2,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_heads": 4,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
    "patch_size": 4,
}
KIMI_TOWER: Mapping[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "pos_emb_height": 6,
    "pos_emb_width": 5,
}
QWEN3_VL_MOE: Mapping[str, Any] = {
    **TEXT,
    "head_dim": 12,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
}

HYBRID_VARIANTS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "qwen3_next": (
        {**DELTA, **EXPERTS},
        {**DELTA, **EXPERTS, "mlp_only_layers": [0], "decoder_sparse_step": 2, "attention_bias": True},
        {
            **DELTA,
            **EXPERTS,
            "layer_types": ["full_attention", "linear_attention", "full_attention", "full_attention"],
            "tie_word_embeddings": True,
        },
    ),
    "qwen3_5_text": (DELTA, {**DELTA, "attention_bias": True, "tie_word_embeddings": True}),
    "qwen3_5_moe_text": ({**DELTA, **EXPERTS},),
    "qwen3_5": (
        {"text_config": DELTA, "vision_config": TOWER},
        {"text_config": DELTA, "vision_config": {**TOWER, "spatial_merge_size": 3}, "tie_word_embeddings": True},
    ),
    "qwen3_5_moe": ({"text_config": {**DELTA, **EXPERTS}, "vision_config": TOWER},),
    "jamba": (
        JAMBA,
        {**JAMBA, "mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_dt_rank": "auto"},
        {**JAMBA, "num_experts": 1, "tie_word_embeddings": True},
        {**JAMBA, "expert_layer_period": 3, "expert_layer_offset": 0},
    ),
    "bamba": (
        {**TEXT, **MAMBA2, "attn_layer_indices": [1, 2]},
        {**TEXT, **MAMBA2, "attn_layer_indices": [0], "attention_bias": True, "mlp_bias": True},
        {**TEXT, **MAMBA2, "mamba_d_head": 32, "mamba_proj_bias": True, "mamba_conv_bias": False},
    ),
    "granitemoehybrid": (
        {**TEXT, **MAMBA2, "num_local_experts": 3, "layer_types": ["mamba", "attention", "mamba", "mamba"]},
        {**TEXT, **MAMBA2, "num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 28},
        {**TEXT, **MAMBA2, "attention_bias": True, "position_embedding_type": "rope",
         "layer_types": ["full_attention", "linear_attention"] * 2, "tie_word_embeddings": True},
    ),
    "falcon_mamba": (FALCON_MAMBA, {**FALCON_MAMBA, "use_bias": True, "tie_word_embeddings": False}),
    "nemotron_h": (
        NEMOTRON_H,
        {**NEMOTRON_H, "moe_latent_size": 16, "use_bias": True, "use_conv_bias": False},
        {**NEMOTRON_H, "hybrid_override_pattern": "M-*-", "mlp_bias": True},
    ),
    "kimi_linear": (
        KIMI_LINEAR,
        {
            **KIMI_LINEAR,
            "linear_attn_config": {"head_dim": 6, "num_heads": 4},
            "num_hidden_layers": 5,
            "q_lora_rank": 40,
            "first_k_dense_replace": 2,
        },
    ),
    "minimax": (MINIMAX, {**MINIMAX, "layer_types": ["linear_attention"] * 3 + ["full_attention"]}),
    "mistral4": ({**DEEPSEEK, "first_k_dense_replace": 1}, {**DEEPSEEK, "attention_bias": True}),
    "qwen3_vl": (
        {"text_config": {**TEXT, "head_dim": 12}, "vision_config": {**TOWER, "deepstack_visual_indexes": [0, 1]}},
        {"text_config": {**TEXT, "attention_bias": True}, "vision_config": TOWER, "tie_word_embeddings": True},
    ),
    "qwen3_vl_moe": (
        {"text_config": QWEN3_VL_MOE, "vision_config": {**TOWER, "deepstack_visual_indexes": [0]}},
        {"text_config": {**QWEN3_VL_MOE, "mlp_only_layers": [1], "attention_bias": True}, "vision_config": TOWER},
    ),
    "kimi_k25": (
        {
            "text_config": {"model_type": "deepseek_v3", **DEEPSEEK, "first_k_dense_replace": 1},
            "vision_config": KIMI_TOWER,
            "projection_hidden_size": 24,
            "tie_word_embeddings": False,
        },
    ),
}  # fmt: skip
