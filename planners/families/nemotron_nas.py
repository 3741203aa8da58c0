"""Nemotron Super and its like: Llama layers of which a search chose the sizes, and whether they attend at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.planners.architecture.attention import GroupedAttention
from plimsoll.planners.architecture.decoder import decoder_layer, norm_weights
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.families.family import Family, Untraced
from plimsoll.planners.families.reading.assembly import DecoderSizes, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.layer_kinds import number_of_layers
from plimsoll.planners.families.reading.sublayers import LAYER, Sublayer, attention_sublayer, gated_sublayer

# Feed-forwards are two thirds of the multiple, as gated ones are, in steps of 256: modeling_decilm.py.
GATED_SHARE = 2 / 3
WIDTH_STEP = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What sets one layer apart from another; None and 0 where it lacks the half."""

    key_value_heads: int | None
    intermediate_size: int


def nemotron_nas(config: ConfigReader) -> ModelSpec:
    """Return the description of a model that a neural architecture search cut out of a Llama.

    Source: modeling_decilm.py and block_config.py beside the weights of
    Llama-3_3-Nemotron-Super-49B-v1; Bercovich et al. 2024, arXiv:2411.19146.
    """
    hidden_size, heads = config.size("hidden_size"), config.size("num_attention_heads")
    config.must_divide("num_attention_heads", heads, "hidden_size", hidden_size)
    head_dim = config.size("head_dim", default=hidden_size // heads)
    attention_bias = config.flag("attention_bias", default=False)
    feed_forward_bias = config.flag("mlp_bias", default=False)
    config.ignore("hidden_act", "intermediate_size", "num_key_value_heads")
    kinds = _kinds(config, hidden_size, heads)

    def layer(indices: tuple[int, ...], kind: _Kind) -> Block:
        mixer = feed_forward = None
        if kind.key_value_heads is not None:
            size = GroupedAttention(
                hidden_size=hidden_size, heads=heads, key_value_heads=kind.key_value_heads, head_dim=head_dim
            )
            mixer = _normed("input_layernorm", attention_sublayer(size, bias=attention_bias), hidden_size)
        if kind.intermediate_size:
            gated = gated_sublayer(hidden_size, kind.intermediate_size, bias=feed_forward_bias)
            feed_forward = _normed("post_attention_layernorm", gated, hidden_size)
        return decoder_layer(
            layers=indices,
            hidden_size=hidden_size,
            mixer=mixer.half if mixer else None,
            feed_forward=feed_forward.half if feed_forward else None,
            kv=mixer.kv if mixer else None,
            weights=(*(mixer.weights if mixer else ()), *(feed_forward.weights if feed_forward else ())),
        )

    most = max((kind.key_value_heads or 0 for kind in kinds), default=0)
    return decoder_model(
        config,
        attention=DecoderSizes(hidden_size=hidden_size, heads=heads, key_value_heads=most or heads),
        layers=blocks_by_kind(kinds, layer),
    )


def _normed(name: str, sublayer: Sublayer, hidden_size: int) -> Sublayer:
    return dataclasses.replace(sublayer, weights=(*norm_weights(f"{LAYER}.{name}", hidden_size), *sublayer.weights))


def _kinds(config: ConfigReader, hidden_size: int, heads: int) -> list[_Kind]:
    num_layers = number_of_layers(config)
    blocks = config.items("block_configs") or []
    if len(blocks) != num_layers:
        raise config.error("block_configs", f"'block_configs' has {len(blocks)} layers of {num_layers}.")
    return [_kind(config, layer, block, hidden_size, heads) for layer, block in enumerate(blocks)]


def _kind(config: ConfigReader, layer: int, block: object, hidden_size: int, heads: int) -> _Kind:
    attention, feed_forward = _part(config, layer, block, "attention"), _part(config, layer, block, "ffn")
    group = attention.get("n_heads_in_group")
    multiple = feed_forward.get("ffn_mult")
    key_value_heads, inner = None, 0
    if not attention.get("no_op"):
        if not isinstance(group, int) or isinstance(group, bool) or group < 1 or heads % group:
            raise _error(config, layer, f"'n_heads_in_group' must divide {heads} heads")
        key_value_heads = heads // group
    if not feed_forward.get("no_op"):
        if isinstance(multiple, bool) or not isinstance(multiple, int | float) or not 0 < multiple <= hidden_size:
            raise _error(config, layer, "'ffn_mult' must be a positive number")
        inner = -(-int(GATED_SHARE * multiple * hidden_size) // WIDTH_STEP) * WIDTH_STEP
    if key_value_heads is None and not inner:
        raise _error(config, layer, "a layer must have attention or a feed-forward")
    return _Kind(key_value_heads=key_value_heads, intermediate_size=inner)


def _part(config: ConfigReader, layer: int, block: object, key: str) -> Mapping[str, Any]:
    """Return one half's choices; raise for a half that is something else than a smaller one."""
    part = block.get(key) if isinstance(block, Mapping) else None
    if not isinstance(part, Mapping):
        raise _error(config, layer, f"'{key}' must be an object")
    for choice in ("replace_with_linear", "sparsify", "window_length", "num_sink_tokens"):
        if part.get(choice):
            raise _error(config, layer, f"'{choice}' of '{key}' is not described")
    return part


def _error(config: ConfigReader, layer: int, detail: str) -> Exception:
    return config.error("block_configs", f"Layer {layer}: {detail}.")


FAMILIES: Mapping[str, Family] = {
    "nemotron-nas": Family(
        reader=nemotron_nas,
        untraced=Untraced.REMOTE_CODE,
        needs_remote_code=True,
    ),
}
