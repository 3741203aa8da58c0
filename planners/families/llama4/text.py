"""Llama 4's text model: attention within chunks but for a few layers, experts in all or every other layer."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from plimsoll.planners.architecture.mixture_of_experts import FusedExperts
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.families.reading.assembly import blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.attention import read_attention
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.experts import (
    FeedForwards,
    MixtureNames,
    SharedExperts,
    Sized,
    layer_kind,
    read_mixture,
)
from plimsoll.planners.families.reading.layer_kinds import number_of_layers
from plimsoll.planners.families.reading.sublayers import LAYER, attention_sublayer, layer_of

# Defaults of transformers' Llama4TextConfig.
DEFAULT_HEAD_DIM = 128
DEFAULT_KEY_VALUE_HEADS = 8
DEFAULT_CHUNK = 8192
DEFAULT_DENSE_WIDTH = 16384
DEFAULT_NO_ROTARY_INTERVAL = 4
FEED_FORWARD = f"{LAYER}.feed_forward"

CHOSEN_EXPERTS_NOTE = (
    "Each token works in the experts that the router chose for it; transformers' own module runs it through all of "
    "them, which takes longer and as many times the memory for what experts keep."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What sets one layer apart from another."""

    chunk: int | None
    has_rotary: bool
    has_experts: bool


def llama4_text(config: ConfigReader) -> ModelSpec:
    """Return the description of a Llama 4 text model.

    Layers with rotary positions attend within their chunk, those without to
    everything. The tuning of the attention's temperature and the norm of queries
    and keys have no weights, and next to no cost.

    Source: `transformers` 5.23, modeling_llama4.
    """
    attention = read_attention(
        config, head_dim_default=DEFAULT_HEAD_DIM, key_value_heads_default=DEFAULT_KEY_VALUE_HEADS
    )
    mixture = read_mixture(
        config,
        attention.hidden_size,
        experts=Sized("num_local_experts", 16),
        per_token=Sized("num_experts_per_tok", 1),
        width=Sized("intermediate_size"),
        shared=SharedExperts(),
    )
    feed_forwards = FeedForwards(
        dense_width=config.size("intermediate_size_mlp", default=DEFAULT_DENSE_WIDTH),
        mixture=mixture,
        names=MixtureNames(
            prefix=FEED_FORWARD, router="router", fused=FusedExperts.INPUT_FIRST, shared="shared_expert"
        ),
        dense_prefix=FEED_FORWARD,
    )
    bias = config.flag("attention_bias", default=False)
    config.ignore(
        "attn_scale", "attn_temperature_tuning", "floor_scale", "hidden_act", "output_router_logits",
        "router_aux_loss_coef", "router_jitter_noise", "use_qk_norm", "for_llm_compressor",
    )  # fmt: skip

    def layer(indices: tuple[int, ...], kind: _Kind) -> Block:
        size = dataclasses.replace(
            attention, window=kind.chunk, is_chunked=kind.chunk is not None, has_rotary=kind.has_rotary
        )
        is_dense = not kind.has_experts
        return layer_of(
            indices,
            size.hidden_size,
            attention_sublayer(size, bias=bias),
            feed_forwards.sublayer(is_dense=is_dense),
            kind=layer_kind(is_dense=is_dense),
        )

    return decoder_model(
        config,
        attention=attention,
        mixture=mixture,
        layers=blocks_by_kind(_kinds(config), layer),
        assumptions=(CHOSEN_EXPERTS_NOTE,),
    )


def _kinds(config: ConfigReader) -> list[_Kind]:
    """Return each layer's kind: the config's lists, or else every n-th layer."""
    num_layers = number_of_layers(config)
    chunk = (
        DEFAULT_CHUNK if config.is_left_out("attention_chunk_size") else config.optional_size("attention_chunk_size")
    )
    interval = config.size("no_rope_layer_interval", default=DEFAULT_NO_ROTARY_INTERVAL)
    rotary = config.whole_numbers("no_rope_layers") or tuple(
        int((layer + 1) % interval != 0) for layer in range(num_layers)
    )
    if len(rotary) < num_layers:
        raise config.error("no_rope_layers", f"'no_rope_layers' names {len(rotary)} layers of {num_layers}.")
    types = config.strings("layer_types") or tuple(
        "chunked_attention" if has_rotary else "full_attention" for has_rotary in rotary[:num_layers]
    )
    if len(types) != num_layers:
        raise config.error("layer_types", f"'layer_types' names {len(types)} layers of {num_layers}.")
    config.must_be("layer_types", "chunked_attention", "full_attention")
    step = config.size("interleave_moe_layer_step", default=1)
    listed = config.whole_numbers("moe_layers")
    with_experts = set(range(step - 1, num_layers, step) if listed is None else listed)
    return [
        _Kind(
            chunk=chunk if types[layer] == "chunked_attention" else None,
            has_rotary=bool(rotary[layer]),
            has_experts=layer in with_experts,
        )
        for layer in range(num_layers)
    ]
