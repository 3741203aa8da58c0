"""The reader of Llama-like mixtures of experts: grouped attention, and experts in some or all layers.

Families differ in what is listed by `MixtureDecoder`; each is one entry of
`mixture_families.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.families.reading.assembly import blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.attention import QueryKeyNorm, read_attention, with_query_key_norm
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.dense import NEVER, Bias
from plimsoll.planners.families.reading.experts import (
    GATED_EXPERTS,
    FeedForwards,
    MixtureNames,
    SharedExperts,
    Sized,
    layer_kind,
    read_mixture,
)
from plimsoll.planners.families.reading.layer_kinds import DenseLayers, dense_layers
from plimsoll.planners.families.reading.multi_token import multi_token_assumptions
from plimsoll.planners.families.reading.sublayers import attention_sublayer, layer_of
from plimsoll.planners.families.reading.windows import DEFAULT_MAX_WINDOW_LAYERS, Windows, layer_windows


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureDecoder:
    """What differs between families; defaults are Mixtral's.

    `groups` is the key of the groups that experts are chosen by. `only` lists keys whose other values change the model
    in a way that is not described. Defaults that a config may leave out are its config class's own.
    """

    experts: Sized
    experts_per_token: Sized
    expert_width: Sized
    names: MixtureNames = GATED_EXPERTS
    shared: SharedExperts | None = None
    groups: str | None = None
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
        norm = self._norm(config)
        attention = with_query_key_norm(
            read_attention(
                config,
                head_dim_default=self.head_dim_default,
                key_value_heads_default=self.key_value_heads_default,
            ),
            norm,
        )
        mixture = read_mixture(
            config,
            attention.hidden_size,
            experts=self.experts,
            per_token=self.experts_per_token,
            width=self.expert_width,
            shared=self.shared,
            groups=self.groups,
            has_shared_gate=self.names.shared_gate is not None,
        )
        is_dense = dense_layers(config, self.dense_layers, first_default=self.first_dense_default)
        # Unread where no layer is dense: some families then put an expert's width there.
        dense_width = config.size("intermediate_size") if any(is_dense) else 0
        feed_forwards = FeedForwards(dense_width=dense_width, mixture=mixture, names=self.names)
        bias, output_bias = self.qkv_bias.read(config), self.output_bias.read(config)

        def layer(indices: tuple[int, ...], kind: tuple[int | None, bool]) -> Block:
            window, dense = kind
            size = attention.with_window(window)
            return layer_of(
                indices,
                size.hidden_size,
                attention_sublayer(size, bias=bias, output_bias=output_bias, norm=norm),
                feed_forwards.sublayer(is_dense=dense),
                kind=layer_kind(is_dense=dense),
                norm_bias=self.norm_bias,
            )

        self._ignore(config)
        return decoder_model(
            config,
            attention=attention,
            mixture=mixture,
            layers=blocks_by_kind(zip(self._windows(config), is_dense, strict=True), layer),
            norm_bias=self.norm_bias,
            head_bias=self.head_bias.read(config),
            assumptions=multi_token_assumptions(config, *self.multi_token_keys) if self.multi_token_keys else (),
        )

    def _norm(self, config: ConfigReader) -> QueryKeyNorm:
        if self.query_key_norm_switch is None or config.flag(self.query_key_norm_switch, default=False):
            return self.query_key_norm
        return QueryKeyNorm.NONE

    def _windows(self, config: ConfigReader) -> list[int | None]:
        return layer_windows(
            config,
            self.windows,
            default=self.window_default,
            used_by_default=self.windows_used_by_default,
            max_window_layers_default=self.max_window_layers_default,
        )

    def _ignore(self, config: ConfigReader) -> None:
        """Raise where a config asks for another form; mark what changes nothing."""
        for key, known in self.only.items():
            config.must_be(key, *known)
        config.ignore("hidden_act", "intermediate_size", "output_router_logits", "router_aux_loss_coef",
                      "router_jitter_noise", "norm_topk_prob", *self.ignored)  # fmt: skip
