"""MiMo-V2-Flash: a short window with sinks in most layers, values narrower than keys, a dense layer before experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from plimsoll.planners.architecture.attention import GroupedAttention
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.families.family import Family
from plimsoll.planners.families.reading.assembly import DecoderSizes, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.experts import FeedForwards, MixtureNames, Sized, layer_kind, read_mixture
from plimsoll.planners.families.reading.layer_kinds import number_of_layers
from plimsoll.planners.families.reading.sublayers import ATTENTION, attention_sublayer, layer_of

# Defaults of transformers' MiMoV2FlashConfig.
DEFAULT_KEY_VALUE_HEADS = 4
DEFAULT_HEAD_DIM = 192
DEFAULT_VALUE_DIM = 128
DEFAULT_WINDOW = 129
FULL_ATTENTION_EVERY = 6


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
    hidden_size = full.hidden_size
    windowed = replace(full, key_value_heads=2 * full.key_value_heads, window=_window(config))
    _check_windowed_layers(config, windowed)
    mixture = read_mixture(
        config,
        hidden_size,
        experts=Sized("n_routed_experts", 256),
        per_token=Sized("num_experts_per_tok", 8),
        width=Sized("moe_intermediate_size", 2048),
        groups="n_group",
    )
    feed_forwards = FeedForwards(
        dense_width=config.size("intermediate_size"),
        mixture=mixture,
        names=MixtureNames(balancing_bias="gate.e_score_correction_bias"),
    )
    bias = config.flag("attention_bias", default=False)
    config.ignore(
        "attention_value_scale", "attention_chunk_size", "hidden_act", "layernorm_epsilon", "norm_topk_prob",
        "output_router_logits", "partial_rotary_factor", "routed_scaling_factor", "scoring_func", "swa_rope_theta",
        "topk_group", "topk_method",
    )  # fmt: skip

    def layer(indices: tuple[int, ...], kind: _Kind) -> Block:
        size = windowed if kind.is_windowed else full
        sinks = f"{ATTENTION}.attention_sink_bias" if kind.is_windowed else None
        return layer_of(
            indices,
            hidden_size,
            attention_sublayer(size, bias=bias, output_bias=False, sinks=sinks),
            feed_forwards.sublayer(is_dense=kind.is_dense),
            kind=layer_kind(is_dense=kind.is_dense),
        )

    return decoder_model(
        config,
        attention=DecoderSizes(hidden_size=hidden_size, heads=full.heads, key_value_heads=windowed.key_value_heads),
        mixture=mixture,
        layers=blocks_by_kind(_kinds(config), layer),
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
    num_layers = number_of_layers(config)
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


FAMILIES: Mapping[str, Family] = {
    "mimo_v2_flash": Family(
        reader=mimo_v2_flash,
        needs_remote_code=True,
    ),
}
