"""MiMo-V2-Flash: a short window with sinks in most layers, values narrower than keys, a dense layer before experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.planners.architecture.attention import GroupedAttention, separate_projections, sink_weight
from plimsoll.planners.architecture.decoder import (
    attention_half,
    decoder_layer,
    feed_forward_half,
    mixture_half,
    norm_weights,
)
from plimsoll.planners.architecture.feed_forward import gated_weights
from plimsoll.planners.architecture.mixture_of_experts import MixtureOfExperts, expert_weights, router_weight
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.family import Family
from plimsoll.planners.families.reading.assembly import DecoderSizes, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.mixtures import balancing_bias_weight, checked_experts_per_token

# Defaults of transformers' MiMoV2FlashConfig.
DEFAULT_KEY_VALUE_HEADS = 4
DEFAULT_HEAD_DIM = 192
DEFAULT_VALUE_DIM = 128
DEFAULT_WINDOW = 129
DEFAULT_EXPERTS = 256
DEFAULT_EXPERTS_PER_TOKEN = 8
DEFAULT_EXPERT_WIDTH = 2048
FULL_ATTENTION_EVERY = 6
LAYER = "model.layers.{layer}"
EXPERT_NAMES = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What sets one layer apart from another."""

    is_windowed: bool
    is_dense: bool


def mimo_v2_flash(config: ConfigReader) -> ModelSpec:
    """Return the description of a MiMo-V2-Flash model; windowed layers have twice the key-value heads, and sinks.

    Source: `transformers` 5.23, modeling_mimo_v2_flash.
    """
    full = _attention(config)
    windowed = GroupedAttention(
        hidden_size=full.hidden_size,
        heads=full.heads,
        key_value_heads=2 * full.key_value_heads,
        head_dim=full.head_dim,
        value_head_dim=full.value_head_dim,
        window=_window(config),
    )
    _check_windowed_layers(config, windowed)
    mixture = _mixture(config, full.hidden_size)
    intermediate_size = config.size("intermediate_size")
    bias = config.flag("attention_bias", default=False)
    config.ignore(
        "attention_value_scale", "attention_chunk_size", "hidden_act", "layernorm_epsilon", "n_group", "norm_topk_prob",
        "output_router_logits", "partial_rotary_factor", "routed_scaling_factor", "scoring_func", "swa_rope_theta",
        "topk_group", "topk_method",
    )  # fmt: skip

    def layer(indices: tuple[int, ...], kind: _Kind) -> Block:
        size = windowed if kind.is_windowed else full
        hidden_size = size.hidden_size
        feed_forward = (
            feed_forward_half(hidden_size, intermediate_size, gated=True) if kind.is_dense else mixture_half(mixture)
        )
        return decoder_layer(
            layers=indices,
            hidden_size=hidden_size,
            mixer=attention_half(size),
            feed_forward=feed_forward,
            kv=size.kv_state(),
            kind="dense_layer" if kind.is_dense else "expert_layer",
            weights=(
                *separate_projections(f"{LAYER}.self_attn", size, qkv_bias=bias, output_bias=False),
                *((sink_weight(f"{LAYER}.self_attn.attention_sink_bias", size),) if kind.is_windowed else ()),
                *(
                    gated_weights(f"{LAYER}.mlp", hidden_size, intermediate_size)
                    if kind.is_dense
                    else _mixture_weights(mixture)
                ),
                *norm_weights(f"{LAYER}.input_layernorm", hidden_size),
                *norm_weights(f"{LAYER}.post_attention_layernorm", hidden_size),
            ),
        )

    return decoder_model(
        config,
        sizes=DecoderSizes(
            hidden_size=full.hidden_size,
            vocabulary_size=config.size("vocab_size"),
            heads=full.heads,
            key_value_heads=windowed.key_value_heads,
            experts_per_token=mixture.experts_per_token,
        ),
        layers=blocks_by_kind(_kinds(config), layer),
        tied=config.flag("tie_word_embeddings", default=False),
    )


def _attention(config: ConfigReader) -> GroupedAttention:
    heads = config.size("num_attention_heads")
    key_value_heads = config.size("num_key_value_heads", default=DEFAULT_KEY_VALUE_HEADS)
    config.must_divide("num_key_value_heads", 2 * key_value_heads, "num_attention_heads", heads)
    return GroupedAttention(
        hidden_size=config.size("hidden_size"),
        heads=heads,
        key_value_heads=key_value_heads,
        head_dim=config.size("head_dim", default=DEFAULT_HEAD_DIM),
        value_head_dim=config.size("v_head_dim", default=DEFAULT_VALUE_DIM),
    )


def _window(config: ConfigReader) -> int:
    """Return the window: `sliding_window_size` counts the tokens before the query, `sliding_window` the query too."""
    before = config.optional_size("sliding_window_size")
    window = config.size("sliding_window", default=DEFAULT_WINDOW)
    return window if before is None else before + 1


def _check_windowed_layers(config: ConfigReader, windowed: GroupedAttention) -> None:
    """Raise unless what the config says of windowed layers is what every stack builds."""
    config.must_be("swa_num_attention_heads", windowed.heads)
    config.must_be("swa_num_key_value_heads", windowed.key_value_heads)
    config.must_be("swa_head_dim", windowed.head_dim)
    config.must_be("swa_v_head_dim", windowed.value_dim)
    config.must_be("add_swa_attention_sink_bias", True)
    config.must_be("add_full_attention_sink_bias", False)
    config.must_be("n_shared_experts", 0)


def _kinds(config: ConfigReader) -> list[_Kind]:
    """Return each layer's kind under the names of transformers or of the published config, else the class's own."""
    num_layers = config.size("num_hidden_layers", most=MOST_LAYERS)
    kinds = [
        _Kind(is_windowed=layer > 0 and (layer + 1) % FULL_ATTENTION_EVERY != 0, is_dense=layer == 0)
        for layer in range(num_layers)
    ]
    config.must_be("layer_types", "full_attention", "sliding_attention")
    config.must_be("mlp_layer_types", "dense", "sparse")
    config.must_be("hybrid_layer_pattern", 0, 1)
    config.must_be("moe_layer_freq", 0, 1)
    types = config.strings("layer_types") or tuple(
        "sliding_attention" if flag else "full_attention" for flag in config.whole_numbers("hybrid_layer_pattern") or ()
    )
    feed_forwards = config.strings("mlp_layer_types") or tuple(
        "sparse" if flag else "dense" for flag in config.whole_numbers("moe_layer_freq") or ()
    )
    for key, named in (("layer_types", types), ("mlp_layer_types", feed_forwards)):
        if named and len(named) != num_layers:
            raise config.error(key, f"'{key}' names {len(named)} layers of {num_layers}.")
    return [
        _Kind(
            is_windowed=types[layer] == "sliding_attention" if types else kind.is_windowed,
            is_dense=feed_forwards[layer] == "dense" if feed_forwards else kind.is_dense,
        )
        for layer, kind in enumerate(kinds)
    ]


def _mixture(config: ConfigReader, hidden_size: int) -> MixtureOfExperts:
    experts = config.size("n_routed_experts", default=DEFAULT_EXPERTS)
    chosen = config.size("num_experts_per_tok", default=DEFAULT_EXPERTS_PER_TOKEN)
    return MixtureOfExperts(
        hidden_size=hidden_size,
        intermediate_size=config.size("moe_intermediate_size", default=DEFAULT_EXPERT_WIDTH),
        experts=experts,
        experts_per_token=checked_experts_per_token(config, "num_experts_per_tok", chosen, experts),
    )


def _mixture_weights(mixture: MixtureOfExperts) -> tuple[Weight, ...]:
    return (
        router_weight(f"{LAYER}.mlp.gate.weight", mixture),
        balancing_bias_weight(f"{LAYER}.mlp.gate.e_score_correction_bias", mixture),
        *expert_weights(f"{LAYER}.mlp.experts.{{expert}}", mixture, names=EXPERT_NAMES),
    )


FAMILIES: Mapping[str, Family] = {
    "mimo_v2_flash": Family(
        reader=mimo_v2_flash,
        needs_remote_code=True,
    ),
}
