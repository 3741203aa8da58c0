"""Step 3.5 and 3.7: more heads in the windowed layers, a gate for each head, experts after three dense layers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from plimsoll.planners.architecture.attention import GroupedAttention, column, separate_projections
from plimsoll.planners.architecture.decoder import attention_half, mixture_half
from plimsoll.planners.architecture.mixture_of_experts import MixtureOfExperts, router_weight, shared_expert_weights
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.output_gate import gated_output
from plimsoll.planners.architecture.weight import Part, Split, Weight
from plimsoll.planners.families.reading.assembly import blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.attention import QueryKeyNorm, query_key_norm_weights
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.experts import (
    SharedExperts,
    Sized,
    balancing_bias_weight,
    layer_kind,
    read_mixture,
)
from plimsoll.planners.families.reading.layer_kinds import named_layers, number_of_layers
from plimsoll.planners.families.reading.multi_token import multi_token_assumptions
from plimsoll.planners.families.reading.sublayers import ATTENTION, LAYER, Sublayer, gated_sublayer, layer_of

# Defaults of transformers' Step3p7TextConfig.
DEFAULT_FIRST_EXPERTS = 3
DEFAULT_WIDTH = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What sets one layer apart from another."""

    is_windowed: bool
    is_dense: bool


def step3_text(config: ConfigReader) -> ModelSpec:
    """Return the description of a Step 3.5 or 3.7 text model, without its multi-token layers.

    Source: `transformers` 5.23, modeling_step3p7 and conversion_mapping.
    """
    full = _attention(config)
    hidden_size, windowed = full.hidden_size, _windowed_attention(config, full)
    mixture = read_mixture(
        config,
        hidden_size,
        experts=Sized("n_routed_experts", 288, ("moe_num_experts", "num_experts")),
        per_token=Sized("num_experts_per_tok", 8, ("moe_top_k",)),
        width=Sized("moe_intermediate_size", 1280),
        shared=SharedExperts(width=Sized("share_expert_dim", 1280, ("share_expert_dims",))),
    )
    dense = gated_sublayer(hidden_size, config.size("intermediate_size", default=11_264))
    experts = Sublayer(half=mixture_half(mixture), weights=_mixture_weights(mixture))
    _check_form(config)

    def layer(indices: tuple[int, ...], kind: _Kind) -> Block:
        mixer = _gated_attention(windowed if kind.is_windowed else full)
        feed_forward = dense if kind.is_dense else experts
        return layer_of(indices, hidden_size, mixer, feed_forward, kind=layer_kind(is_dense=kind.is_dense))

    return decoder_model(
        config,
        attention=full,
        mixture=mixture,
        vocabulary_size=config.size("vocab_size", default=128_815),
        layers=blocks_by_kind(_kinds(config), layer),
        assumptions=multi_token_assumptions(config, config.named("num_nextn_predict_layers", "num_mtp_layers")),
    )


def _check_form(config: ConfigReader) -> None:
    """Raise where a config asks for another form of the model than the published ones; mark what changes nothing."""
    config.must_be("attention_bias", False)
    config.must_be("mlp_bias", False)
    config.must_be("use_head_wise_attn_gate", True)
    config.must_be("use_moe", True)
    config.must_be("use_moe_router_bias", True)
    config.must_be("n_shared_experts", 1)
    config.ignore(
        "att_impl_type", "hidden_act", "max_seq_len", "moe_every_n_layer", "moe_router_activation", "num_local_experts",
        "moe_router_scaling_factor", "mtp_layer_types", "mtp_mlp_layer_types", "need_fp32_gate", "norm_expert_weight",
        "output_router_logits", "partial_rotary_factors", "query_pre_attn_scalar", "scoring_func", "swiglu_limits",
        "swiglu_limits_shared", "use_bidirectional_attention", "use_qk_norm", "use_rope_layers", "yarn_only_types",
        "zero_centered",
    )  # fmt: skip


def _attention(config: ConfigReader) -> GroupedAttention:
    heads = config.size("num_attention_heads", default=64)
    key = config.named("num_key_value_heads", "num_attention_groups")
    key_value_heads = config.size(key, default=8)
    config.must_divide(key, key_value_heads, "num_attention_heads", heads)
    return GroupedAttention(
        hidden_size=config.size("hidden_size", default=DEFAULT_WIDTH),
        heads=heads,
        key_value_heads=key_value_heads,
        head_dim=config.size("head_dim", default=128),
    )


def _windowed_attention(config: ConfigReader, full: GroupedAttention) -> GroupedAttention:
    """Return the windowed layers' attention, whose number of heads stands on its own in the config."""
    other = config.section("attention_other_setting")
    heads = config.size("num_sliding_attention_heads", default=other.size("num_attention_heads", default=full.heads))
    config.must_divide("num_key_value_heads", full.key_value_heads, "num_sliding_attention_heads", heads)
    other.must_be("attention_type", "sliding_attention")
    other.must_be("num_attention_groups", full.key_value_heads)
    other.must_be("head_dim", full.head_dim)
    other.must_be("true_head_dim", full.head_dim)
    return dataclasses.replace(full, heads=heads, window=config.optional_size("sliding_window"))


def _gated_attention(size: GroupedAttention) -> Sublayer:
    """Return attention with a gate for each head's output."""
    hidden_size, heads = size.hidden_size, size.heads
    return Sublayer(
        half=gated_output(
            attention_half(size), hidden_size=hidden_size, gate_width=heads, context_width=size.context_width
        ),
        weights=(
            *separate_projections(ATTENTION, size, qkv_bias=False, output_bias=False),
            column(f"{ATTENTION}.g_proj.weight", (heads, hidden_size), heads, is_linear=True),
            *query_key_norm_weights(ATTENTION, size, QueryKeyNorm.HEAD),
        ),
        kv=size.kv_state(),
    )


def _kinds(config: ConfigReader) -> list[_Kind]:
    """Return each layer's kind; lists that go on with the multi-token layers are cut."""
    num_layers = number_of_layers(config, default=45)
    types = named_layers(config, "layer_types", num_layers, "sliding_attention", "full_attention", may_go_on=True)
    feed_forwards = named_layers(config, "mlp_layer_types", num_layers, "dense", "sparse", may_go_on=True)
    experts = _expert_layers(config, num_layers)
    return [
        _Kind(
            is_windowed=types is not None and types[layer] == "sliding_attention",
            is_dense=layer not in experts if feed_forwards is None else feed_forwards[layer] == "dense",
        )
        for layer in range(num_layers)
    ]


# Of a layer's number.
MOST_DIGITS = len(str(MOST_LAYERS))


def _expert_layers(config: ConfigReader, num_layers: int) -> set[int]:
    """Return the layers that have experts, which may be one text with commas."""
    if config.is_text("moe_layers_enum"):
        numbers = [number.strip() for number in config.text("moe_layers_enum", default="").split(",")]
        # Python calls "²" a digit too, and reads no number of five thousand of them.
        if not all(
            number.isascii() and number.isdigit() and len(number) <= MOST_DIGITS for number in numbers if number
        ):
            raise config.error("moe_layers_enum", "'moe_layers_enum' must be numbers of layers between commas.")
        return {int(number) for number in numbers if number}
    listed = config.whole_numbers("moe_layers_enum")
    first = config.count("first_k_dense_replace", default=DEFAULT_FIRST_EXPERTS)
    return set(range(first, num_layers)) if listed is None else set(listed)


def _mixture_weights(mixture: MixtureOfExperts) -> tuple[Weight, ...]:
    """Return router, experts and shared expert; all experts' gates are one tensor, and their ups, and their downs."""
    prefix, inner, hidden = f"{LAYER}.moe", mixture.intermediate_size, mixture.hidden_size
    experts = tuple(
        Weight(
            name=f"{prefix}.{name}.weight",
            shape=(mixture.experts, *shape),
            part=Part.EXPERT,
            split=split,
            dim=dim,
            experts=mixture.experts,
            is_linear=True,
            is_fused=True,
        )
        for name, shape, split, dim in (
            ("gate_proj", (inner, hidden), Split.COLUMN, 1),
            ("up_proj", (inner, hidden), Split.COLUMN, 1),
            ("down_proj", (hidden, inner), Split.ROW, 2),
        )
    )
    return (
        router_weight(f"{prefix}.gate.weight", mixture),
        balancing_bias_weight(f"{prefix}.router_bias", mixture),
        *experts,
        *shared_expert_weights(f"{LAYER}.share_expert", mixture),
    )
