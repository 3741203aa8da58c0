"""Llama 4's text model: attention within chunks but for a few layers, experts in all or every other layer."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from plimsoll.planners.architecture.attention import separate_projections
from plimsoll.planners.architecture.decoder import (
    attention_half,
    decoder_layer,
    feed_forward_half,
    mixture_half,
    norm_weights,
)
from plimsoll.planners.architecture.feed_forward import gated_weights
from plimsoll.planners.architecture.mixture_of_experts import (
    FusedExperts,
    MixtureOfExperts,
    fused_expert_weights,
    router_weight,
    shared_expert_weights,
)
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.reading.assembly import DecoderSizes, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.dense import read_attention
from plimsoll.planners.families.reading.mixtures import checked_experts_per_token

# Defaults of transformers' Llama4TextConfig.
DEFAULT_HEAD_DIM = 128
DEFAULT_KEY_VALUE_HEADS = 8
DEFAULT_CHUNK = 8192
DEFAULT_EXPERTS = 16
DEFAULT_EXPERTS_PER_TOKEN = 1
DEFAULT_DENSE_WIDTH = 16384
DEFAULT_NO_ROTARY_INTERVAL = 4

CHOSEN_EXPERTS_NOTE = (
    "Each token works in the experts that the router chose for it; transformers' own module runs it through all of "
    "them and takes longer."
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
    mixture = _mixture(config, attention.hidden_size)
    dense_width = config.size("intermediate_size_mlp", default=DEFAULT_DENSE_WIDTH)
    bias = config.flag("attention_bias", default=False)
    config.ignore(
        "attn_scale", "attn_temperature_tuning", "floor_scale", "hidden_act", "output_router_logits",
        "router_aux_loss_coef", "router_jitter_noise", "use_qk_norm", "for_llm_compressor",
    )  # fmt: skip
    prefix = "model.layers.{layer}"

    def layer(indices: tuple[int, ...], kind: _Kind) -> Block:
        size = dataclasses.replace(
            attention, window=kind.chunk, is_chunked=kind.chunk is not None, has_rotary=kind.has_rotary
        )
        hidden_size = size.hidden_size
        return decoder_layer(
            layers=indices,
            hidden_size=hidden_size,
            mixer=attention_half(size),
            feed_forward=(
                mixture_half(mixture) if kind.has_experts else feed_forward_half(hidden_size, dense_width, gated=True)
            ),
            kv=size.kv_state(),
            kind="expert_layer" if kind.has_experts else "dense_layer",
            weights=(
                *separate_projections(f"{prefix}.self_attn", size, qkv_bias=bias, output_bias=bias),
                *(
                    _mixture_weights(f"{prefix}.feed_forward", mixture)
                    if kind.has_experts
                    else gated_weights(f"{prefix}.feed_forward", hidden_size, dense_width)
                ),
                *norm_weights(f"{prefix}.input_layernorm", hidden_size),
                *norm_weights(f"{prefix}.post_attention_layernorm", hidden_size),
            ),
        )

    return decoder_model(
        config,
        sizes=DecoderSizes(
            hidden_size=attention.hidden_size,
            vocabulary_size=config.size("vocab_size"),
            heads=attention.heads,
            key_value_heads=attention.key_value_heads,
            experts_per_token=mixture.experts_per_token,
        ),
        layers=blocks_by_kind(_kinds(config), layer),
        tied=config.flag("tie_word_embeddings", default=False),
        assumptions=(CHOSEN_EXPERTS_NOTE,),
    )


def _kinds(config: ConfigReader) -> list[_Kind]:
    """Return each layer's kind: the config's lists, or else every n-th layer."""
    num_layers = config.size("num_hidden_layers", most=MOST_LAYERS)
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


def _mixture(config: ConfigReader, hidden_size: int) -> MixtureOfExperts:
    """Return the mixture; one shared expert as wide as the others stands beside them."""
    width = config.size("intermediate_size")
    experts = config.size("num_local_experts", default=DEFAULT_EXPERTS)
    chosen = config.size("num_experts_per_tok", default=DEFAULT_EXPERTS_PER_TOKEN)
    return MixtureOfExperts(
        hidden_size=hidden_size,
        intermediate_size=width,
        experts=experts,
        experts_per_token=checked_experts_per_token(config, "num_experts_per_tok", chosen, experts),
        shared_intermediate_size=width,
    )


def _mixture_weights(prefix: str, mixture: MixtureOfExperts) -> tuple[Weight, ...]:
    return (
        router_weight(f"{prefix}.router.weight", mixture),
        *fused_expert_weights(
            (f"{prefix}.experts.gate_up_proj", f"{prefix}.experts.down_proj"), mixture, FusedExperts.INPUT_FIRST
        ),
        *shared_expert_weights(f"{prefix}.shared_expert", mixture),
    )
