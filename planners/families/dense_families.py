"""Dense decoder families, each by what differs from Llama.

Source of every entry: the family's modelling and configuration files in
`transformers` 5.23, or the file named beside it.
"""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.architecture.decoder import NormPlacement
from plimsoll.planners.families.assembly import DecoderNames
from plimsoll.planners.families.dense import ALWAYS, NEVER, Bias, DenseFamily, FeedForward, QueryKeyNorm, Windows

PHI3_IGNORED = (
    "attention_bias",
    "embd_pdrop",
    "full_attn_mod",
    "interpolate_factor",
    "lm_head_bias",
    "mlp_bias",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "resid_pdrop",
)
GEMMA_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
# Caps and scales of scores and logits cost nothing that is counted.
GEMMA_IGNORED = (
    "attn_logit_softcapping",
    "cache_implementation",
    "final_logit_softcapping",
    "hidden_activation",
    "query_pre_attn_scalar",
    "rope_local_base_freq",
)
QWEN2_VL_TEXT = DenseFamily(
    qkv_bias=ALWAYS,
    output_bias=NEVER,
    feed_forward_bias=NEVER,
    key_value_heads_default=8,
    windows=Windows.FROM_MAX_WINDOW_LAYERS,
    window_default=4096,
)

DENSE_FAMILIES: Mapping[str, DenseFamily] = {
    "llama": DenseFamily(),
    "mistral": DenseFamily(
        qkv_bias=NEVER,
        output_bias=NEVER,
        feed_forward_bias=NEVER,
        key_value_heads_default=8,
        windows=Windows.ALL,
        window_default=4096,
    ),
    # Its queries are scaled by position, which changes no weight and no product.
    "ministral3": DenseFamily(
        qkv_bias=NEVER,
        output_bias=NEVER,
        feed_forward_bias=NEVER,
        key_value_heads_default=8,
        head_dim_default=128,
        windows=Windows.ALL,
    ),
    # The first Yi models' own code was Llama's; their type was renamed later.
    "Yi": DenseFamily(),
    "qwen2": DenseFamily(
        qkv_bias=ALWAYS,
        output_bias=NEVER,
        feed_forward_bias=NEVER,
        key_value_heads_default=32,
        windows=Windows.FROM_MAX_WINDOW_LAYERS,
        window_default=4096,
    ),
    # Source: modeling_mimo.py and configuration_mimo.py beside the weights of MiMo-7B: Qwen2 and a multi-token layer.
    "mimo": DenseFamily(
        qkv_bias=ALWAYS,
        output_bias=NEVER,
        feed_forward_bias=NEVER,
        key_value_heads_default=32,
        windows=Windows.FROM_MAX_WINDOW_LAYERS,
        window_default=4096,
        multi_token_keys=("num_nextn_predict_layers",),
        ignored=("attention_bias", "use_mrope"),
    ),
    # Source: modeling_aquila.py beside the weights of Aquila2: Llama without biases.
    "aquila": DenseFamily(qkv_bias=NEVER, output_bias=NEVER, feed_forward_bias=NEVER, ignored=("attention_bias",)),
    "internlm3": DenseFamily(
        qkv_bias=Bias(key="qkv_bias", other_key="attention_bias"),
        output_bias=Bias(key="bias", other_key="mlp_bias"),
        feed_forward_bias=Bias(key="bias", other_key="mlp_bias"),
        head_dim_default=128,
        key_value_heads_default=2,
    ),
    "qwen3": DenseFamily(
        feed_forward_bias=NEVER,
        query_key_norm=QueryKeyNorm.HEAD,
        head_dim_default=128,
        key_value_heads_default=32,
        windows=Windows.FROM_MAX_WINDOW_LAYERS,
        window_default=4096,
    ),
    "granite": DenseFamily(
        ignored=("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier")
    ),
    "olmo": DenseFamily(feed_forward_bias=NEVER, has_norm_weight=False, ignored=("clip_qkv",)),
    "olmo2": DenseFamily(
        norms_scale_in_fp32=True,
        feed_forward_bias=NEVER,
        query_key_norm=QueryKeyNorm.WIDTH,
        norms=NormPlacement.POST,
        norm_names=("post_attention_layernorm", "post_feedforward_layernorm"),
    ),
    "olmo3": DenseFamily(
        norms_scale_in_fp32=True,
        feed_forward_bias=NEVER,
        query_key_norm=QueryKeyNorm.WIDTH,
        norms=NormPlacement.POST,
        norm_names=("post_attention_layernorm", "post_feedforward_layernorm"),
        windows=Windows.ALL_BUT_EVERY_FOURTH,
        window_default=4096,
    ),
    # Every fourth layer does not rotate its queries and keys, which changes no weight and no product.
    "smollm3": DenseFamily(
        tied_by_default=True,
        key_value_heads_default=4,
        windows=Windows.ALL,
        ignored=("max_window_layers", "no_rope_layer_interval", "no_rope_layers"),
    ),
    "seed_oss": DenseFamily(
        qkv_bias=Bias(key="attention_bias", default=True),
        output_bias=Bias(key="attention_out_bias"),
        head_dim_default=128,
        key_value_heads_default=8,
        ignored=("residual_dropout",),
    ),
    "ernie4_5": DenseFamily(
        qkv_bias=Bias(key="use_bias"),
        output_bias=Bias(key="use_bias"),
        feed_forward_bias=Bias(key="use_bias"),
        tied_by_default=True,
        head_dim_default=128,
        key_value_heads_default=2,
    ),
    "starcoder2": DenseFamily(
        qkv_bias=Bias(key="use_bias", default=True),
        output_bias=Bias(key="use_bias", default=True),
        feed_forward_bias=Bias(key="use_bias", default=True),
        feed_forward=FeedForward.PLAIN,
        plain_names=("c_fc", "c_proj"),
        norm_bias=True,
        tied_by_default=True,
        key_value_heads_default=2,
        windows=Windows.ALL,
        ignored=("embedding_dropout", "norm_epsilon", "residual_dropout", "mlp_type", "norm_type"),
    ),
    # MiniCPM is Llama with fixed factors on embedding, residuals and logits: openbmb/MiniCPM-2B-sft-bf16.
    "minicpm": DenseFamily(
        feed_forward_bias=NEVER,
        tied_by_default=True,
        ignored=("dim_model_base", "scale_depth", "scale_emb", "rope_type"),
    ),
    "phi3": DenseFamily(
        rotation_concatenates=True,
        qkv_bias=NEVER,
        output_bias=NEVER,
        feed_forward_bias=NEVER,
        has_fused_projections=True,
        feed_forward=FeedForward.FUSED_GATED,
        windows=Windows.ALL,
        ignored=PHI3_IGNORED,
    ),
    "gemma": DenseFamily(
        norms_scale_in_fp32=True,
        feed_forward_bias=NEVER,
        tied_by_default=True,
        head_dim_default=256,
        key_value_heads_default=16,
        ignored=GEMMA_IGNORED,
    ),
    "gemma2": DenseFamily(
        norms_scale_in_fp32=True,
        feed_forward_bias=NEVER,
        norms=NormPlacement.SANDWICH,
        norm_names=GEMMA_NORMS,
        tied_by_default=True,
        head_dim_default=256,
        key_value_heads_default=4,
        windows=Windows.EVERY_OTHER,
        window_default=4096,
        ignored=(*GEMMA_IGNORED, "sliding_window_size"),
    ),
    "gemma3_text": DenseFamily(
        norms_scale_in_fp32=True,
        feed_forward_bias=NEVER,
        query_key_norm=QueryKeyNorm.HEAD,
        norms=NormPlacement.SANDWICH,
        norm_names=GEMMA_NORMS,
        tied_by_default=True,
        head_dim_default=256,
        key_value_heads_default=4,
        windows=Windows.ALL_BUT_EVERY_SIXTH,
        window_default=4096,
        ignored=GEMMA_IGNORED,
    ),
    "qwen3_vl_text": DenseFamily(
        feed_forward_bias=NEVER,
        query_key_norm=QueryKeyNorm.HEAD,
        head_dim_default=128,
        key_value_heads_default=32,
    ),
    "qwen2_vl_text": QWEN2_VL_TEXT,
    "qwen2_5_vl_text": QWEN2_VL_TEXT,
    "stablelm": DenseFamily(
        rotation_concatenates=True,
        qkv_bias=Bias(key="use_qkv_bias"),
        output_bias=NEVER,
        feed_forward_bias=NEVER,
        norm_bias=True,
        query_key_norm=QueryKeyNorm.OWN_NORMS,
        query_key_norm_switch="qk_layernorm",
        parallel_switch="use_parallel_residual",
        key_value_heads_default=32,
        ignored=("hidden_dropout", "partial_rotary_factor"),
    ),
    "nemotron": DenseFamily(
        rotation_concatenates=True,
        feed_forward=FeedForward.PLAIN,
        norm_bias=True,
        ignored=("norm_eps", "partial_rotary_factor"),
    ),
    "cohere": DenseFamily(
        norms_scale_in_fp32=True,
        feed_forward_bias=NEVER,
        norms=NormPlacement.PARALLEL,
        norm_names=("input_layernorm",),
        query_key_norm=QueryKeyNorm.EACH_HEAD,
        query_key_norm_switch="use_qk_norm",
        tied_by_default=True,
        ignored=("logit_scale",),
    ),
    "cohere2": DenseFamily(
        norms_scale_in_fp32=True,
        feed_forward_bias=NEVER,
        norms=NormPlacement.PARALLEL,
        norm_names=("input_layernorm",),
        tied_by_default=True,
        windows=Windows.ALL_BUT_EVERY_FOURTH,
        window_default=4096,
        ignored=("logit_scale", "cache_implementation"),
    ),
    "glm": DenseFamily(
        rotation_concatenates=True,
        qkv_bias=Bias(key="attention_bias", default=True),
        output_bias=NEVER,
        feed_forward=FeedForward.FUSED_GATED,
        feed_forward_bias=NEVER,
        head_dim_default=128,
        key_value_heads_default=2,
        ignored=("partial_rotary_factor",),
    ),
    "glm4": DenseFamily(
        rotation_concatenates=True,
        qkv_bias=Bias(key="attention_bias", default=True),
        output_bias=NEVER,
        feed_forward=FeedForward.FUSED_GATED,
        feed_forward_bias=NEVER,
        norms=NormPlacement.SANDWICH,
        norm_names=(
            "input_layernorm",
            "post_attention_layernorm",
            "post_self_attn_layernorm",
            "post_mlp_layernorm",
        ),
        head_dim_default=128,
        key_value_heads_default=2,
        ignored=("partial_rotary_factor",),
    ),
    "phi": DenseFamily(
        rotation_concatenates=True,
        qkv_bias=ALWAYS,
        output_bias=ALWAYS,
        feed_forward_bias=ALWAYS,
        head_bias=True,
        norm_bias=True,
        norms=NormPlacement.PARALLEL,
        norm_names=("input_layernorm",),
        feed_forward=FeedForward.PLAIN,
        plain_names=("fc1", "fc2"),
        output_name="dense",
        names=DecoderNames(final_norm="model.final_layernorm"),
        ignored=("embd_pdrop", "partial_rotary_factor", "resid_pdrop"),
    ),
}
