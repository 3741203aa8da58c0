"""Models small enough to hold every element of every rank in a test."""

from __future__ import annotations

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.families import describe_config

LLAMA = {
    "model_type": "llama", "vocab_size": 101, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 4,
}  # fmt: skip
TIED_LLAMA = {**LLAMA, "tie_word_embeddings": True}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 6, "num_experts_per_tok": 2}
GPT_OSS = {
    **LLAMA, "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2,
    "sliding_window": 8,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "vocab_size": 130, "hidden_size": 16, "intermediate_size": 32,
    "moe_intermediate_size": 8, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
    "q_lora_rank": 6, "kv_lora_rank": 10, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4,
    "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_group": 2,
    "topk_group": 1,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "vocab_size": 99, "n_embd": 16, "n_head": 4, "n_layer": 2, "n_positions": 12}
MAMBA = {
    "model_type": "mamba", "vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 2, "state_size": 4,
    "expand": 2, "conv_kernel": 4, "time_step_rank": 3, "intermediate_size": 16,
}  # fmt: skip
DBRX = {
    "model_type": "dbrx", "vocab_size": 64, "d_model": 16, "n_heads": 4, "n_layers": 2, "max_seq_len": 32,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4},
    "ffn_config": {"ffn_hidden_size": 12, "moe_num_experts": 4, "moe_top_k": 2},
}  # fmt: skip

ALL = {
    "llama": LLAMA, "tied-llama": TIED_LLAMA, "mixtral": MIXTRAL, "gpt-oss": GPT_OSS, "deepseek": DEEPSEEK,
    "gpt2": GPT2, "mamba": MAMBA, "dbrx": DBRX,
}  # fmt: skip


def spec(config: dict, **changes) -> ModelSpec:
    """Return the description of a small model."""
    return describe_config({**config, **changes}, name="small")
