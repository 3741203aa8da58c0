"""Nemotron-H and Nemotron 3: layers that are each one thing, Mamba-2, attention, a feed-forward or experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from plimsoll.planners.architecture.attention import GroupedAttention, separate_projections
from plimsoll.planners.architecture.decoder import (
    attention_half,
    decoder_layer,
    feed_forward_half,
    mixture_half,
    norm_weights,
    with_norms_scaling_in_fp32,
)
from plimsoll.planners.architecture.feed_forward import plain_weights
from plimsoll.planners.architecture.mamba import Mamba2
from plimsoll.planners.architecture.mixture_of_experts import MixtureOfExperts, expert_weights, router_weight
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Part, Weight
from plimsoll.planners.families.family import Family, PartNames, Tracing
from plimsoll.planners.families.reading.assembly import DecoderNames, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.experts import SharedExperts, Sized, balancing_bias_weight, read_mixture
from plimsoll.planners.families.reading.multi_token import multi_token_assumptions
from plimsoll.planners.families.reading.own_code import ROUTED_IN_FP32, OwnCode
from plimsoll.planners.families.reading.sublayers import Sublayer, recurrent_sublayer

MIXER = "backbone.layers.{layer}.mixer"
PLAIN_NAMES = ("up_proj", "down_proj")
# Defaults of transformers' NemotronHConfig.
DEFAULT_HEADS = 32
DEFAULT_KEY_VALUE_HEADS = 8
DEFAULT_HEAD_DIM = 128
DEFAULT_MAMBA_HEADS = 128
DEFAULT_MAMBA_HEAD_DIM = 64
DEFAULT_GROUPS = 8
DEFAULT_STATE_SIZE = 128
DEFAULT_KERNEL = 4
DEFAULT_CHUNK = 128


class LayerKind(StrEnum):
    """What a layer is, under the letters of the published patterns."""

    MAMBA = "M"
    ATTENTION = "*"
    FEED_FORWARD = "-"
    EXPERTS = "E"


# The names of `layers_block_type`, older ones too.
KINDS_BY_NAME: Mapping[str, LayerKind] = {
    "attention": LayerKind.ATTENTION,
    "full_attention": LayerKind.ATTENTION,
    "linear_attention": LayerKind.MAMBA,
    "mamba": LayerKind.MAMBA,
    "mlp": LayerKind.FEED_FORWARD,
    "moe": LayerKind.EXPERTS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """What the layers of one model have in common, read from its config."""

    attention: GroupedAttention
    mamba: Mamba2
    intermediate_size: int
    feed_forward_bias: bool
    mixture: MixtureOfExperts | None

    def block(self, indices: tuple[int, ...], kind: LayerKind) -> Block:
        """Return the layers at `indices`, each with one half only."""
        hidden_size, half = self.attention.hidden_size, self._half(kind)
        mixes = kind in (LayerKind.MAMBA, LayerKind.ATTENTION)
        return decoder_layer(
            layers=indices,
            hidden_size=hidden_size,
            mixer=half.half if mixes else None,
            feed_forward=None if mixes else half.half,
            kv=half.kv,
            kind=f"{kind.name.lower()}_layer",
            weights=(*norm_weights("backbone.layers.{layer}.norm", hidden_size), *half.weights),
        )

    def _half(self, kind: LayerKind) -> Sublayer:
        if kind is LayerKind.MAMBA:
            return recurrent_sublayer(self.mamba, MIXER)
        size = self.attention
        if kind is LayerKind.ATTENTION:
            projections = separate_projections(MIXER, size, qkv_bias=False, output_bias=False)
            return Sublayer(half=attention_half(size), weights=projections, kv=size.kv_state())
        if kind is LayerKind.EXPERTS and self.mixture is not None:
            return Sublayer(half=mixture_half(self.mixture), weights=_mixture_weights(self.mixture))
        width, bias = self.intermediate_size, self.feed_forward_bias
        return Sublayer(
            half=feed_forward_half(size.hidden_size, width, gated=False),
            weights=plain_weights(MIXER, size.hidden_size, width, names=PLAIN_NAMES, bias=bias),
        )


def nemotron_h(config: ConfigReader) -> ModelSpec:
    """Return the description of a Nemotron-H or Nemotron 3 model; its attention has no positions.

    Source: `transformers` 5.23, modeling_nemotron_h; NVIDIA 2025, arXiv:2504.03624.
    """
    hidden_size = config.size("hidden_size")
    kinds = _layer_kinds(config)
    attention = _attention(config, hidden_size)
    mixture = _mixture(config, hidden_size) if LayerKind.EXPERTS in kinds else None
    layer = _Layer(
        attention=attention,
        mamba=_mamba2(config, hidden_size),
        intermediate_size=config.size("intermediate_size") if LayerKind.FEED_FORWARD in kinds else 0,
        feed_forward_bias=config.flag("mlp_bias", default=False),
        mixture=mixture,
    )
    _ignore_keys_without_effect(config)
    model = decoder_model(
        config,
        attention=attention,
        mixture=mixture,
        layers=blocks_by_kind(kinds, layer.block),
        tied=False,
        names=DecoderNames(embedding="backbone.embeddings.weight", final_norm="backbone.norm_f"),
        assumptions=multi_token_assumptions(config, "num_nextn_predict_layers"),
    )
    return with_norms_scaling_in_fp32(model)


def _layer_kinds(config: ConfigReader) -> list[LayerKind]:
    """Return what each layer is, from a list of names or a pattern of letters."""
    key = config.named("layers_block_type", "layer_types")
    names, pattern = config.strings(key), config.text("hybrid_override_pattern", default="")
    config.must_be(key, *KINDS_BY_NAME)
    if names is not None:
        return [KINDS_BY_NAME[name] for name in names]
    letters = {kind.value for kind in LayerKind}
    if not pattern or set(pattern) - letters or len(pattern) > MOST_LAYERS:
        raise config.error(
            "hybrid_override_pattern",
            f"'hybrid_override_pattern' must say by {' '.join(sorted(letters))} what each layer is.",
        )
    return [LayerKind(letter) for letter in pattern]


def _attention(config: ConfigReader, hidden_size: int) -> GroupedAttention:
    heads = config.size("num_attention_heads", default=DEFAULT_HEADS)
    key_value_heads = config.size("num_key_value_heads", default=DEFAULT_KEY_VALUE_HEADS)
    config.must_divide("num_key_value_heads", key_value_heads, "num_attention_heads", heads)
    return GroupedAttention(
        hidden_size=hidden_size,
        heads=heads,
        key_value_heads=key_value_heads,
        head_dim=config.size("head_dim", default=config.size("attention_head_dim", default=DEFAULT_HEAD_DIM)),
        has_rotary=False,
    )


def _mamba2(config: ConfigReader, hidden_size: int) -> Mamba2:
    return Mamba2(
        hidden_size=hidden_size,
        heads=config.size("mamba_num_heads", default=DEFAULT_MAMBA_HEADS),
        head_dim=config.size("mamba_head_dim", default=DEFAULT_MAMBA_HEAD_DIM),
        groups=config.size(config.named("mamba_n_groups", "n_groups"), default=DEFAULT_GROUPS),
        state_size=config.size("ssm_state_size", default=DEFAULT_STATE_SIZE),
        kernel=config.size(config.named("mamba_d_conv", "conv_kernel"), default=DEFAULT_KERNEL),
        chunk=config.size(config.named("mamba_chunk_size", "chunk_size"), default=DEFAULT_CHUNK),
        projection_bias=config.flag("use_bias", default=False),
        convolution_bias=config.flag(config.named("mamba_conv_bias", "use_conv_bias"), default=True),
    )


def _mixture(config: ConfigReader, hidden_size: int) -> MixtureOfExperts:
    """Return the experts, which have no gate and, with a `moe_latent_size`, work in a latent."""
    config.must_be("mlp_bias", False)
    config.must_be("n_shared_experts", 1)
    return read_mixture(
        config,
        hidden_size,
        experts=Sized("n_routed_experts"),
        shared=SharedExperts(width=Sized("moe_shared_expert_intermediate_size")),
        groups="n_group",
        is_gated=False,
        latent_size=config.optional_size("moe_latent_size"),
    )


def _mixture_weights(mixture: MixtureOfExperts) -> tuple[Weight, ...]:
    hidden_size, latent, width = mixture.hidden_size, mixture.latent_size, mixture.shared_intermediate_size
    # Every rank holds the latent's projections whole, so that only what goes to the experts is narrow.
    latents = () if latent is None else (("fc1", (latent, hidden_size)), ("fc2", (hidden_size, latent)))
    return (
        router_weight(f"{MIXER}.gate.weight", mixture),
        balancing_bias_weight(f"{MIXER}.gate.e_score_correction_bias", mixture),
        *expert_weights(f"{MIXER}.experts.{{expert}}", mixture, names=PLAIN_NAMES),
        *(
            Weight(name=f"{MIXER}.{name}_latent_proj.weight", shape=shape, part=Part.SHARED_EXPERT, is_linear=True)
            for name, shape in latents
        ),
        *plain_weights(
            f"{MIXER}.shared_experts", hidden_size, width, names=PLAIN_NAMES, bias=False, part=Part.SHARED_EXPERT
        ),
    )


def _ignore_keys_without_effect(config: ConfigReader) -> None:
    config.must_be("attention_bias", False)
    config.must_be("tie_word_embeddings", False)  # transformers has a head of its own whatever it says
    config.ignore(
        "attention_head_dim", "expand", "hidden_dropout", "intermediate_size",
        "mamba_dt_init_floor", "mamba_dt_limit", "mamba_dt_max", "mamba_dt_min", "mamba_expand", "mamba_hidden_act",
        "mamba_proj_bias", "mamba_ssm_cache_dtype", "mlp_hidden_act", "moe_intermediate_size", "moe_latent_size",
        "moe_shared_expert_intermediate_size", "moe_shared_expert_overlap", "mtp_hybrid_override_pattern",
        "mtp_layers_block_type", "n_group", "n_routed_experts", "n_shared_experts", "norm_eps", "norm_topk_prob",
        "num_experts_per_tok", "num_hidden_layers", "num_logits_to_keep", "output_router_logits",
        "partial_rotary_factor", "rescale_prenorm_residual", "residual_in_fp32", "routed_scaling_factor",
        "sliding_window", "time_step_floor", "time_step_limit", "time_step_max", "time_step_min", "time_step_rank",
        "topk_group", "use_mamba_kernels",
    )  # fmt: skip


FAMILIES: Mapping[str, Family] = {
    "nemotron_h": Family(
        reader=nemotron_h,
        parts=PartNames(embedding="embeddings", norm="norm_f"),
        tracing=Tracing(state_space_module="nemotron_h.modeling_nemotron_h"),
        has_experts=True,
        needs_remote_code=True,
        own_code=OwnCode(activation="relu2", activation_keys=("mlp_hidden_act",), fp32_operations=ROUTED_IN_FP32),
    ),
}
