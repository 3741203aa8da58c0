"""Small configs that walk down every branch of the readers of families whose layers differ in kind."""

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
DEEPSEEK_V4: Mapping[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "head_dim": 24,
    "q_lora_rank": 40,
    "o_groups": 4,
    "o_lora_rank": 20,
    "moe_intermediate_size": 36,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "num_hash_layers": 1,
    "index_n_heads": 3,
    "index_head_dim": 12,
    "hc_mult": 3,
    "max_position_embeddings": 96,
}
KINDS = ["sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention"]
STEP3_TEXT: Mapping[str, Any] = {
    **TEXT,
    "head_dim": 12,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "share_expert_dim": 28,
    "sliding_window": 32,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"],
}
TOWER: Mapping[str, Any] = {
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 56,
    "patch_size": 14,
}
MINIMAX_M3_TEXT: Mapping[str, Any] = {
    **TEXT,
    "head_dim": 12,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "intermediate_size": 20,
    "shared_intermediate_size": 28,
    "dense_intermediate_size": 88,
    "moe_layer_freq": [0, 1, 1, 1],
    "sparse_attention_config": {
        "sparse_num_index_heads": 3,
        "sparse_index_dim": 10,
        "sparse_attention_freq": [0, 0, 1, 1],
    },
}
SHARED: Mapping[str, Any] = {
    **TEXT,
    "head_dim": 12,
    "hidden_size_per_layer_input": 20,
    "vocab_size_per_layer_input": 97,
    "num_hidden_layers": 6,
    "num_kv_shared_layers": 3,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
}
GEMMA4_SMALL: Mapping[str, Any] = {**SHARED, "global_head_dim": 16}
GEMMA3N: Mapping[str, Any] = {**SHARED, "laurel_rank": 5, "altup_num_inputs": 3}
GEMMA3N_EARS: Mapping[str, Any] = {
    "hidden_size": 48,
    "conf_num_attention_heads": 4,
    "conf_num_hidden_layers": 2,
    "conf_conv_kernel_size": 3,
    "input_feat_size": 20,
    "sscp_conv_channel_size": [10, 6],
    "sscp_conv_kernel_size": [[3, 5], [5, 3]],
    "sscp_conv_stride_size": [[2, 3], [2, 2]],
    "vocab_size": 7,
}
MLLAMA_TOWER: Mapping[str, Any] = {
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_global_layers": 1,
    "attention_heads": 4,
    "image_size": 56,
    "patch_size": 14,
    "vision_output_dim": 120,
}

RECENT_VARIANTS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "deepseek_v4": (
        # The published lists go on with the multi-token layer.
        {**DEEPSEEK_V4, "compress_ratios": [0, 4, 128, 4, 0]},
        DEEPSEEK_V4,
        {
            **DEEPSEEK_V4,
            "layer_types": [*KINDS, "sliding_attention"],
            "mlp_layer_types": ["hash_moe", "moe", "hash_moe", "moe"],
            "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 8},
            "tie_word_embeddings": True,
        },
    ),
    "step3p7": (
        {
            "text_config": {
                **STEP3_TEXT,
                "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 12},
            },
            "vision_config": {**TOWER, "mlp_ratio": 1.5},
        },
        {
            "text_config": {**STEP3_TEXT, "moe_layers_enum": "1,3", "num_sliding_attention_heads": 4},
            "vision_config": TOWER,
            "projector_bias": True,
        },
        {
            "text_config": {**STEP3_TEXT, "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"]},
            "vision_config": TOWER,
        },
    ),
    "minimax_m3_vl": (
        {"text_config": MINIMAX_M3_TEXT, "vision_config": TOWER, "projector_hidden_size": 36},
        {
            "text_config": {
                **MINIMAX_M3_TEXT,
                "layer_types": ["minimax_m3_sparse", "full_attention", "full_attention", "full_attention"],
                "mlp_layer_types": ["sparse", "dense", "dense", "sparse"],
            },
            "vision_config": TOWER,
        },
    ),
    "gemma3n_text": (
        GEMMA3N,
        {**GEMMA3N, "intermediate_size": [88, 88, 40, 40, 40, 72], "num_kv_shared_layers": 0},
        {**GEMMA3N, "attention_bias": True, "tie_word_embeddings": False},
    ),
    "gemma3n": (
        {"text_config": {"model_type": "gemma3n_text", **GEMMA3N}, "audio_config": GEMMA3N_EARS},
        {"text_config": {"model_type": "gemma3n_text", **GEMMA3N}, "vision_config": {"vocab_size": 5}},
    ),
    "mllama": (
        {"text_config": {**TEXT, "cross_attention_layers": [1, 3]}, "vision_config": MLLAMA_TOWER},
        {"text_config": TEXT, "vision_config": {**MLLAMA_TOWER, "supported_aspect_ratios": [[1, 1], [1, 2]]}},
    ),
    "internlm3": (TEXT, {**TEXT, "head_dim": 12, "qkv_bias": True, "bias": True, "tie_word_embeddings": True}),
}
# Further configs of a family whose others stand elsewhere.
PER_LAYER_VARIANTS: tuple[Mapping[str, Any], ...] = (
    GEMMA4_SMALL,
    {**GEMMA4_SMALL, "use_double_wide_mlp": True, "attention_bias": True, "tie_word_embeddings": False},
    {
        **GEMMA4_SMALL,
        "hidden_size_per_layer_input": 0,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "use_double_wide_mlp": True,
        "enable_moe_block": True,
        "num_experts": 6,
        "top_k_experts": 2,
        "moe_intermediate_size": 20,
    },
)
