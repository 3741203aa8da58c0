"""Dense decoder families, each by what differs from Llama.

Source of every entry: the family's modelling and configuration files in
`transformers` 5.23, or the file named beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from plimsoll.planners.architecture.decoder import NormPlacement
from plimsoll.planners.families.family import Family, Liger, PartNames, Serving, Tracing, Untraced
from plimsoll.planners.families.reading.assembly import DecoderNames
from plimsoll.planners.families.reading.attention import QueryKeyNorm
from plimsoll.planners.families.reading.dense import ALWAYS, NEVER, Bias, DenseDecoder, FeedForward
from plimsoll.planners.families.reading.own_code import OwnCode
from plimsoll.planners.families.reading.windows import Windows

PHI3_IGNORED = (
    "attention_bias", "embd_pdrop", "full_attn_mod", "interpolate_factor", "lm_head_bias", "mlp_bias",
    "original_max_position_embeddings", "partial_rotary_factor", "resid_pdrop",
)  # fmt: skip
LLAMA_SIZES: Mapping[str, int] = {
    "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "max_position_embeddings": 2048,
}  # fmt: skip
MISTRAL = DenseDecoder(
    qkv_bias=NEVER,
    output_bias=NEVER,
    feed_forward_bias=NEVER,
    key_value_heads_default=8,
    windows=Windows.ALL,
    window_default=4096,
)
QWEN_2 = DenseDecoder(
    qkv_bias=ALWAYS,
    output_bias=NEVER,
    feed_forward_bias=NEVER,
    key_value_heads_default=32,
    windows=Windows.FROM_MAX_WINDOW_LAYERS,
    window_default=4096,
)
OLMO_2 = DenseDecoder(
    norms_scale_in_fp32=True,
    feed_forward_bias=NEVER,
    query_key_norm=QueryKeyNorm.WIDTH,
    norms=NormPlacement.POST,
    norm_names=("post_attention_layernorm", "post_feedforward_layernorm"),
)
GLM = DenseDecoder(
    rotation_concatenates=True,
    qkv_bias=Bias(key="attention_bias", default=True),
    output_bias=NEVER,
    feed_forward=FeedForward.FUSED_GATED,
    feed_forward_bias=NEVER,
    head_dim_default=128,
    key_value_heads_default=2,
    ignored=("partial_rotary_factor",),
)

FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        reader=DenseDecoder(),
        tracing=Tracing(has_llama_matrices=True, liger=Liger()),
        serving=Serving(),
        class_sizes=LLAMA_SIZES,
    ),
    "mistral": Family(
        reader=MISTRAL,
        tracing=Tracing(has_llama_matrices=True, liger=Liger()),
        serving=Serving(),
        class_sizes={
            "vocab_size": 32_000,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 131_072,
        },
    ),
    # Mistral with a kind of attention for each layer: `layer_types`, all windows where a config leaves them out.
    "ministral": Family(
        reader=MISTRAL,
        tracing=Tracing(has_llama_matrices=True),
        class_sizes={
            "vocab_size": 32_000,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 131_072,
        },
    ),
    # Its queries are scaled by position, which changes no weight and no product.
    "ministral3": Family(
        reader=replace(MISTRAL, head_dim_default=128, window_default=None),
        tracing=Tracing(),
        class_sizes={
            "vocab_size": 131_072,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 34,
            "num_attention_heads": 32,
            "max_position_embeddings": 262_144,
        },
    ),
    # The first Yi models' own code was Llama's; their type was renamed later.
    "Yi": Family(
        reader=DenseDecoder(),
    ),
    "qwen2": Family(
        reader=QWEN_2,
        tracing=Tracing(has_llama_matrices=True, liger=Liger()),
        serving=Serving(),
        class_sizes={
            "vocab_size": 151_936,
            "hidden_size": 4096,
            "intermediate_size": 22_016,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 32_768,
        },
    ),
    # Source: modeling_mimo.py and configuration_mimo.py beside the weights of MiMo-7B: Qwen2 and a multi-token layer.
    "mimo": Family(
        reader=replace(QWEN_2, multi_token_keys=("num_nextn_predict_layers",), ignored=("attention_bias", "use_mrope")),
        untraced=Untraced.REMOTE_CODE,
        needs_remote_code=True,
    ),
    # Source: modeling_aquila.py beside the weights of Aquila2: Llama without biases.
    "aquila": Family(
        reader=DenseDecoder(qkv_bias=NEVER, output_bias=NEVER, feed_forward_bias=NEVER, ignored=("attention_bias",)),
        untraced=Untraced.REMOTE_CODE,
        needs_remote_code=True,
    ),
    "internlm3": Family(
        reader=DenseDecoder(
            qkv_bias=Bias(key="qkv_bias", other_key="attention_bias"),
            output_bias=Bias(key="bias", other_key="mlp_bias"),
            feed_forward_bias=Bias(key="bias", other_key="mlp_bias"),
            head_dim_default=128,
            key_value_heads_default=2,
        ),
        needs_remote_code=True,
    ),
    "qwen3": Family(
        reader=DenseDecoder(
            feed_forward_bias=NEVER,
            query_key_norm=QueryKeyNorm.HEAD,
            head_dim_default=128,
            key_value_heads_default=32,
            windows=Windows.FROM_MAX_WINDOW_LAYERS,
            window_default=4096,
        ),
        tracing=Tracing(has_llama_matrices=True, liger=Liger()),
        serving=Serving(),
    ),
    "granite": Family(
        reader=DenseDecoder(
            ignored=("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier")
        ),
        tracing=Tracing(liger=Liger(has_fused_loss=False)),
        serving=Serving(),
        class_sizes=LLAMA_SIZES,
    ),
    "olmo": Family(
        reader=DenseDecoder(feed_forward_bias=NEVER, has_norm_weight=False, ignored=("clip_qkv",)),
        tracing=Tracing(),
        own_code=OwnCode(has_unscaled_norms=True),
    ),
    "olmo2": Family(
        reader=OLMO_2,
        tracing=Tracing(liger=Liger(norms_in_place=False)),
        serving=Serving(is_divided=False),
    ),
    "olmo3": Family(
        reader=replace(OLMO_2, windows=Windows.ALL_BUT_EVERY_FOURTH, window_default=4096),
        tracing=Tracing(),
    ),
    # Every fourth layer does not rotate its queries and keys, which changes no weight and no product.
    "smollm3": Family(
        reader=DenseDecoder(
            tied_by_default=True,
            key_value_heads_default=4,
            windows=Windows.ALL,
            ignored=("max_window_layers", "no_rope_layer_interval", "no_rope_layers"),
        ),
        tracing=Tracing(),
    ),
    "seed_oss": Family(
        reader=DenseDecoder(
            qkv_bias=Bias(key="attention_bias", default=True),
            output_bias=Bias(key="attention_out_bias"),
            head_dim_default=128,
            key_value_heads_default=8,
            ignored=("residual_dropout",),
        ),
        tracing=Tracing(),
        own_code=OwnCode(dropout_key="residual_dropout", dropout=0.1),
    ),
    "ernie4_5": Family(
        reader=DenseDecoder(
            qkv_bias=Bias(key="use_bias"),
            output_bias=Bias(key="use_bias"),
            feed_forward_bias=Bias(key="use_bias"),
            tied_by_default=True,
            head_dim_default=128,
            key_value_heads_default=2,
        ),
        tracing=Tracing(),
    ),
    "starcoder2": Family(
        reader=DenseDecoder(
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
        tracing=Tracing(),
        serving=Serving(is_divided=False),
        own_code=OwnCode(dropout_key="residual_dropout"),
    ),
    # MiniCPM is Llama with fixed factors on embedding, residuals and logits: openbmb/MiniCPM-2B-sft-bf16.
    "minicpm": Family(
        reader=DenseDecoder(
            feed_forward_bias=NEVER,
            tied_by_default=True,
            ignored=("dim_model_base", "scale_depth", "scale_emb", "rope_type"),
        ),
        untraced=Untraced.REMOTE_CODE,
        needs_remote_code=True,
    ),
    "phi3": Family(
        reader=DenseDecoder(
            rotation_concatenates=True,
            qkv_bias=NEVER,
            output_bias=NEVER,
            feed_forward_bias=NEVER,
            has_fused_projections=True,
            feed_forward=FeedForward.FUSED_GATED,
            windows=Windows.ALL,
            ignored=PHI3_IGNORED,
        ),
        tracing=Tracing(liger=Liger()),
        serving=Serving(is_divided=False),
    ),
    "stablelm": Family(
        reader=DenseDecoder(
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
        tracing=Tracing(),
        rotary_fraction=0.25,
    ),
    "nemotron": Family(
        reader=DenseDecoder(
            rotation_concatenates=True,
            feed_forward=FeedForward.PLAIN,
            norm_bias=True,
            ignored=("norm_eps", "partial_rotary_factor"),
        ),
        tracing=Tracing(),
        rotary_fraction=0.5,
    ),
    # Arcee's AFM: a squared ReLU, and no gate before it.
    "arcee": Family(
        reader=DenseDecoder(feed_forward=FeedForward.PLAIN),
        tracing=Tracing(),
    ),
    "cohere": Family(
        reader=DenseDecoder(
            norms_scale_in_fp32=True,
            feed_forward_bias=NEVER,
            norms=NormPlacement.PARALLEL,
            norm_names=("input_layernorm",),
            query_key_norm=QueryKeyNorm.EACH_HEAD,
            query_key_norm_switch="use_qk_norm",
            tied_by_default=True,
            ignored=("logit_scale",),
        ),
        tracing=Tracing(),
        own_code=OwnCode(centres_norms=True),
    ),
    "cohere2": Family(
        reader=DenseDecoder(
            norms_scale_in_fp32=True,
            feed_forward_bias=NEVER,
            norms=NormPlacement.PARALLEL,
            norm_names=("input_layernorm",),
            tied_by_default=True,
            windows=Windows.ALL_BUT_EVERY_FOURTH,
            window_default=4096,
            ignored=("logit_scale", "cache_implementation"),
        ),
        tracing=Tracing(),
        own_code=OwnCode(centres_norms=True),
    ),
    "glm": Family(
        reader=GLM,
    ),
    "glm4": Family(
        reader=replace(
            GLM,
            norms=NormPlacement.SANDWICH,
            norm_names=(
                "input_layernorm",
                "post_attention_layernorm",
                "post_self_attn_layernorm",
                "post_mlp_layernorm",
            ),
        ),
    ),
    "phi": Family(
        reader=DenseDecoder(
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
        parts=PartNames(norm="final_layernorm"),
        tracing=Tracing(),
        own_code=OwnCode(activation="gelu_new", dropout_key="resid_pdrop"),
        rotary_fraction=0.5,
    ),
}
