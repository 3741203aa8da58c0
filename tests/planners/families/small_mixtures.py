"""Small configs of mixtures of experts that walk down every branch of their readers.

No two dimensions are equal, so that a transposed or swapped shape shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]

LLAMA: Config = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LOCAL: Config = {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2}
NUMBERED: Config = {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
ROUTED: Config = {
    **LLAMA,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "first_k_dense_replace": 1,
}
QWEN2: Config = {**NUMBERED, "shared_expert_intermediate_size": 36}
SPARSE: Config = {
    **ROUTED,
    "num_key_value_heads": 8,
    "kv_lora_rank": 24,
    "q_lora_rank": 40,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "n_group": 2,
    "topk_group": 1,
    "index_n_heads": 4,
    "index_head_dim": 6,
    "index_topk": 16,
}
LLAMA4: Config = {
    **LLAMA,
    "num_hidden_layers": 5,
    "intermediate_size_mlp": 100,
    "head_dim": 12,
    "num_local_experts": 4,
}
LLAMA4_VISION: Config = {
    "hidden_size": 40,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 160,
    "image_size": 56,
    "vision_output_dim": 48,
    "projector_input_dim": 44,
    "projector_output_dim": 48,
}
DBRX: Config = {
    "vocab_size": 131,
    "d_model": 64,
    "n_heads": 8,
    "n_layers": 3,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4},
    "ffn_config": {"ffn_hidden_size": 20, "moe_num_experts": 4, "moe_top_k": 2},
}
# The default scaling of positions warns of so short a length.
GPT_OSS: Config = {
    **LOCAL,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
MIMO: Config = {
    **LLAMA,
    "num_hidden_layers": 7,
    "head_dim": 12,
    "v_head_dim": 10,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "sliding_window_size": 31,
}

MIXTURE_VARIANTS: Mapping[str, tuple[Config, ...]] = {
    "mixtral": (LOCAL, {**LOCAL, "sliding_window": 32, "tie_word_embeddings": True}),
    "phimoe": (LOCAL, {**LOCAL, "attention_bias": True, "lm_head_bias": True, "sliding_window": 32}),
    "minimax_m2": ({**LOCAL, "head_dim": 12}, {**LOCAL, "use_qk_norm": True, "num_mtp_modules": 3}),
    "qwen2_moe": (
        QWEN2,
        {**QWEN2, "qkv_bias": False, "decoder_sparse_step": 2},
        {**QWEN2, "mlp_only_layers": [0], "use_sliding_window": True, "sliding_window": 32},
    ),
    "qwen3_moe": (
        NUMBERED,
        {**NUMBERED, "head_dim": 12, "attention_bias": True, "mlp_only_layers": [1], "tie_word_embeddings": True},
    ),
    "olmoe": (
        {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2},
        {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2, "attention_bias": True},
    ),
    "glm4_moe": (ROUTED, {**ROUTED, "use_qk_norm": True, "attention_bias": True, "head_dim": 12}),
    "dots1": (ROUTED, {**ROUTED, "attention_bias": True, "head_dim": 12}),
    "granitemoe": (LOCAL, {**LOCAL, "attention_bias": True, "tie_word_embeddings": True}),
    "gpt_oss": (GPT_OSS, {**GPT_OSS, "attention_bias": False, "head_dim": 12, "tie_word_embeddings": True}),
    "llama4_text": (
        LLAMA4,
        {**LLAMA4, "interleave_moe_layer_step": 2, "attention_bias": True},
        {**LLAMA4, "moe_layers": [1], "no_rope_layers": [1, 0, 1, 0, 1], "attention_chunk_size": 32},
    ),
    "llama4": (
        {
            "text_config": {"model_type": "llama4_text", **LLAMA4, "interleave_moe_layer_step": 2},
            "vision_config": LLAMA4_VISION,
        },
    ),
    "dbrx": (DBRX,),
    "mimo_v2_flash": (
        MIMO,
        {
            **MIMO,
            "attention_bias": True,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 4,
            "mlp_layer_types": ["sparse", "dense"] + ["sparse"] * 5,
        },
    ),
    "deepseek_v32": (SPARSE, {**SPARSE, "attention_bias": True, "mlp_layer_types": ["dense", "sparse", "dense"]}),
    "glm_moe_dsa": (
        SPARSE,
        {**SPARSE, "indexer_types": ["full", "shared", "full"]},
        {**SPARSE, "num_hidden_layers": 5, "index_topk_freq": 2, "index_skip_topk_offset": 2},
        {**SPARSE, "index_topk_pattern": "FSF"},
    ),
}
