"""The reader of Llama-like mixtures of experts: grouped attention, and experts in some or all layers.

Families differ in what is listed by `MixtureDecoder`; each is one entry of
`mixture_families.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from plimsoll.planners.architecture.attention import GroupedAttention, separate_projections
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
    expert_weights,
    fused_expert_weights,
    router_weight,
    shared_expert_weights,
)
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Part, Weight
from plimsoll.planners.families.reading.assembly import DecoderSizes, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.dense import (
    DEFAULT_MAX_WINDOW_LAYERS,
    NEVER,
    Bias,
    QueryKeyNorm,
    Windows,
    layer_windows,
    query_key_norm_weights,
    read_attention,
    with_query_key_norm,
)
from plimsoll.planners.families.reading.multi_token import multi_token_assumptions

LAYER = "model.layers.{layer}"


class DenseLayers(StrEnum):
    """Which layers have a dense feed-forward in place of the mixture."""

    NONE = "none"
    FIRST = "first"  # the first `first_k_dense_replace`
    BETWEEN_STEPS = "between_steps"  # all but every `decoder_sparse_step`-th, and those of `mlp_only_layers`


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A number of the config: its key, and its config class's default where it has one."""

    key: str
    default: int | None = None

    def read(self, config: ConfigReader) -> int:
        """Return the number."""
        return config.size(self.key, default=self.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedExperts:
    """The feed-forward that works on every token beside the chosen experts.

    Its width is under `width_key`, or `count_key` times an expert's.
    """

    name: str = "shared_experts"
    count_key: str | None = "n_shared_experts"
    count_default: int = 0
    width_key: str | None = None
    width_default: int = 0
    gate: str | None = None

    def width(self, config: ConfigReader, expert_width: int) -> int:
        """Return the features of all shared experts together."""
        if self.width_key is not None:
            return config.count(self.width_key, default=self.width_default)
        return config.count(self.count_key or "", default=self.count_default) * expert_width


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureDecoder:
    """What differs between families; defaults are Mixtral's.

    `mixture` is the mixture's name within a layer, `router` and `balancing_bias`
    stand within it. `only` lists keys whose other values change the model in a
    way that is not described. Defaults that a config may leave out are its config
    class's own.
    """

    experts: Sized
    experts_per_token: Sized
    expert_width: Sized
    mixture: str = "mlp"
    router: str = "gate"
    balancing_bias: str | None = None
    expert_names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    fused: FusedExperts | None = None
    fused_names: tuple[str, str] = ("", "")
    shared: SharedExperts | None = None
    dense_layers: DenseLayers = DenseLayers.NONE
    first_dense_default: int = 0
    qkv_bias: Bias = NEVER
    output_bias: Bias = NEVER
    head_bias: Bias = NEVER
    norm_bias: bool = False
    query_key_norm: QueryKeyNorm = QueryKeyNorm.NONE
    query_key_norm_switch: str | None = None
    head_dim_default: int | None = None
    key_value_heads_default: int | None = None  # None: as many as there are query heads
    windows: Windows = Windows.NONE
    window_default: int | None = None
    windows_used_by_default: bool = True
    max_window_layers_default: int = DEFAULT_MAX_WINDOW_LAYERS
    multi_token_keys: tuple[str, ...] = ()
    only: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def __call__(self, config: ConfigReader) -> ModelSpec:
        """Return the description of a model of this form."""
        return _mixture_decoder(config, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """What the layers of one model have in common, read from its config."""

    family: MixtureDecoder
    attention: GroupedAttention
    mixture: MixtureOfExperts
    intermediate_size: int
    qkv_bias: bool
    output_bias: bool
    query_key_norm: QueryKeyNorm

    def block(self, indices: tuple[int, ...], kind: tuple[int | None, bool]) -> Block:
        """Return the layers at `indices`; `kind` is their window and whether they are dense."""
        window, dense = kind
        size = self.attention.with_window(window)
        hidden_size, norm_bias = size.hidden_size, self.family.norm_bias
        feed_forward = (
            feed_forward_half(hidden_size, self.intermediate_size, gated=True) if dense else mixture_half(self.mixture)
        )
        return decoder_layer(
            layers=indices,
            hidden_size=hidden_size,
            mixer=attention_half(size),
            feed_forward=feed_forward,
            kv=size.kv_state(),
            kind="dense_layer" if dense else "expert_layer",
            weights=(
                *separate_projections(f"{LAYER}.self_attn", size, qkv_bias=self.qkv_bias, output_bias=self.output_bias),
                *query_key_norm_weights(f"{LAYER}.self_attn", size, self.query_key_norm),
                *(self._dense_weights() if dense else self._mixture_weights()),
                *norm_weights(f"{LAYER}.input_layernorm", hidden_size, bias=norm_bias),
                *norm_weights(f"{LAYER}.post_attention_layernorm", hidden_size, bias=norm_bias),
            ),
        )

    def _dense_weights(self) -> tuple[Weight, ...]:
        return gated_weights(f"{LAYER}.mlp", self.mixture.hidden_size, self.intermediate_size)

    def _mixture_weights(self) -> tuple[Weight, ...]:
        family, prefix = self.family, f"{LAYER}.{self.family.mixture}"
        weights = [router_weight(f"{prefix}.{family.router}.weight", self.mixture)]
        if family.balancing_bias is not None:
            weights.append(balancing_bias_weight(f"{prefix}.{family.balancing_bias}", self.mixture))
        if family.fused is None:
            weights.extend(expert_weights(f"{prefix}.experts.{{expert}}", self.mixture, names=family.expert_names))
        else:
            first, second = family.fused_names
            weights.extend(
                fused_expert_weights((f"{prefix}.{first}", f"{prefix}.{second}"), self.mixture, family.fused)
            )
        if family.shared is not None:
            weights.extend(shared_expert_weights(f"{prefix}.{family.shared.name}", self.mixture))
            if family.shared.gate is not None:
                gate = (1, self.mixture.hidden_size)
                weights.append(Weight(name=f"{prefix}.{family.shared.gate}.weight", shape=gate, part=Part.ROUTER))
        return tuple(weights)


def _mixture_decoder(config: ConfigReader, family: MixtureDecoder) -> ModelSpec:
    """Return the description of a Llama-like mixture of experts."""
    attention = read_attention(
        config,
        head_dim_default=family.head_dim_default,
        key_value_heads_default=family.key_value_heads_default,
    )
    mixture = _mixture(config, family, attention.hidden_size)
    is_dense = dense_layers(config, family.dense_layers, first_default=family.first_dense_default)
    query_key_norm = _query_key_norm(config, family)
    layer = _Layer(
        family=family,
        attention=with_query_key_norm(attention, query_key_norm),
        mixture=mixture,
        # Unread where no layer is dense: some families then put an expert's width there.
        intermediate_size=config.size("intermediate_size") if any(is_dense) else 0,
        qkv_bias=family.qkv_bias.read(config),
        output_bias=family.output_bias.read(config),
        query_key_norm=query_key_norm,
    )
    windows = layer_windows(
        config,
        family.windows,
        default=family.window_default,
        used_by_default=family.windows_used_by_default,
        max_window_layers_default=family.max_window_layers_default,
    )
    for key, known in family.only.items():
        config.must_be(key, *known)
    config.ignore("hidden_act", "intermediate_size", "output_router_logits", "router_aux_loss_coef",
                  "router_jitter_noise", "norm_topk_prob", *family.ignored)  # fmt: skip
    return decoder_model(
        config,
        sizes=DecoderSizes(
            hidden_size=attention.hidden_size,
            vocabulary_size=config.size("vocab_size"),
            heads=attention.heads,
            key_value_heads=attention.key_value_heads,
            experts_per_token=mixture.experts_per_token,
        ),
        layers=blocks_by_kind(zip(windows, is_dense, strict=True), layer.block),
        tied=config.flag("tie_word_embeddings", default=False),
        norm_bias=family.norm_bias,
        head_bias=family.head_bias.read(config),
        assumptions=multi_token_assumptions(config, *family.multi_token_keys) if family.multi_token_keys else (),
    )


def balancing_bias_weight(name: str, mixture: MixtureOfExperts) -> Weight:
    """Return the bias that balances the experts' load, kept in the checkpoint but not trained by gradients.

    Source: Wang et al. 2024, arXiv:2408.15664.
    """
    return Weight(name=name, shape=(mixture.experts,), part=Part.ROUTER, is_buffer=True)


def dense_layers(config: ConfigReader, rule: DenseLayers, *, first_default: int = 0) -> list[bool]:
    """Return for each layer whether its feed-forward is dense."""
    num_layers = config.size("num_hidden_layers", most=MOST_LAYERS)
    if rule is DenseLayers.FIRST:
        first = config.count("first_k_dense_replace", default=first_default)
        return [layer < first for layer in range(num_layers)]
    if rule is DenseLayers.BETWEEN_STEPS:
        step = config.size("decoder_sparse_step", default=1)
        without = set(config.whole_numbers("mlp_only_layers") or ())
        return [layer in without or (layer + 1) % step != 0 for layer in range(num_layers)]
    return [False] * num_layers


def checked_experts_per_token(config: ConfigReader, key: str, chosen: int, experts: int) -> int:
    """Return how many experts work on a token; raise if there are not that many."""
    if chosen > experts:
        raise config.error(key, f"'{key}' is {chosen}, but a layer has {experts} experts.")
    return chosen


def _mixture(config: ConfigReader, family: MixtureDecoder, hidden_size: int) -> MixtureOfExperts:
    width, experts = family.expert_width.read(config), family.experts.read(config)
    chosen = family.experts_per_token
    shared_width = family.shared.width(config, width) if family.shared is not None else 0
    return MixtureOfExperts(
        hidden_size=hidden_size,
        intermediate_size=width,
        experts=experts,
        experts_per_token=checked_experts_per_token(config, chosen.key, chosen.read(config), experts),
        shared_intermediate_size=shared_width,
        has_shared_gate=family.shared is not None and family.shared.gate is not None,
    )


def _query_key_norm(config: ConfigReader, family: MixtureDecoder) -> QueryKeyNorm:
    if family.query_key_norm_switch is None or config.flag(family.query_key_norm_switch, default=False):
        return family.query_key_norm
    return QueryKeyNorm.NONE
