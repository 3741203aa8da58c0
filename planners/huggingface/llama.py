"""Llama and the families that share its layer: Mistral, Qwen2, Qwen3."""

from __future__ import annotations

from dataclasses import dataclass

from planners.architecture.attention import GroupedAttention, separate_projections
from planners.architecture.decoder import (
    attention_half,
    decoder_layer,
    feed_forward_half,
    norm_weights,
)
from planners.architecture.feed_forward import gated_weights
from planners.architecture.model import Block, ModelSpec
from planners.huggingface.assembly import DecoderSizes, blocks_by_kind, decoder_model
from planners.huggingface.config import MOST_LAYERS, ConfigReader


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaVariant:
    """What differs between the families; defaults are their config classes' own."""

    qkv_bias: bool | None = None  # None: the config's attention_bias decides, for q, k, v and o alike
    qk_norm: bool = False
    tied_by_default: bool = False
    head_dim_default: int | None = None
    all_layers_slide: bool = False  # Mistral's sliding_window covers every layer


LLAMA = LlamaVariant()
MISTRAL = LlamaVariant(qkv_bias=False, all_layers_slide=True)
QWEN2 = LlamaVariant(qkv_bias=True)
QWEN3 = LlamaVariant(qk_norm=True, head_dim_default=128)


def llama_like(config: ConfigReader, name: str, model_type: str, variant: LlamaVariant) -> ModelSpec:
    """Return the description of a pre-norm, rotary, SwiGLU decoder.

    Source: `transformers` 5.23, modeling_llama / mistral / qwen2 / qwen3.
    """
    hidden_size = config.size("hidden_size")
    heads = config.size("num_attention_heads")
    key_value_heads = config.size("num_key_value_heads", default=heads)
    config.must_divide("num_key_value_heads", key_value_heads, "num_attention_heads", heads)
    head_dim = config.optional_size("head_dim") or variant.head_dim_default
    if head_dim is None:
        config.must_divide("num_attention_heads", heads, "hidden_size", hidden_size)
        head_dim = hidden_size // heads
    attention_bias = config.flag("attention_bias", default=False)
    bias = config.flag("mlp_bias", default=False)
    intermediate_size = config.size("intermediate_size")
    vocabulary_size = config.size("vocab_size")
    tied = config.flag("tie_word_embeddings", default=variant.tied_by_default)
    config.text("hidden_act", default="silu")

    def layer(indices: tuple[int, ...], window: int | None) -> Block:
        attention = GroupedAttention(
            hidden_size=hidden_size, heads=heads, key_value_heads=key_value_heads, head_dim=head_dim, window=window
        )
        return decoder_layer(
            layers=indices,
            hidden_size=hidden_size,
            mixer=attention_half(attention),
            feed_forward=feed_forward_half(hidden_size, intermediate_size, gated=True),
            kv=attention.kv_state(),
            weights=(
                *separate_projections(
                    "model.layers.{layer}.self_attn",
                    attention,
                    qkv_bias=attention_bias if variant.qkv_bias is None else variant.qkv_bias,
                    output_bias=attention_bias if variant.qkv_bias is None else False,
                    qk_norm=variant.qk_norm,
                ),
                *gated_weights("model.layers.{layer}.mlp", hidden_size, intermediate_size, bias=bias),
                *norm_weights("model.layers.{layer}.input_layernorm", hidden_size),
                *norm_weights("model.layers.{layer}.post_attention_layernorm", hidden_size),
            ),
        )

    return decoder_model(
        config,
        name=name,
        model_type=model_type,
        sizes=DecoderSizes(
            hidden_size=hidden_size, vocabulary_size=vocabulary_size, heads=heads, key_value_heads=key_value_heads
        ),
        layers=blocks_by_kind(_windows(config, variant), layer),
        tied=tied,
    )


def _windows(config: ConfigReader, variant: LlamaVariant) -> list[int | None]:
    """Return each layer's window, None where it attends to everything."""
    num_layers = config.size("num_hidden_layers", most=MOST_LAYERS)
    layer_types = config.strings("layer_types")
    window = config.optional_size("sliding_window")
    first_windowed = config.optional_size("max_window_layers")
    enabled = config.flag("use_sliding_window", default=variant.all_layers_slide)
    if layer_types is not None:
        if len(layer_types) != num_layers:
            raise config.error("layer_types", f"'layer_types' names {len(layer_types)} layers of {num_layers}.")
        return [window if kind == "sliding_attention" else None for kind in layer_types]
    if window is None or not enabled:
        return [None] * num_layers
    start = 0 if variant.all_layers_slide or first_windowed is None else first_windowed
    return [window if layer >= start else None for layer in range(num_layers)]
