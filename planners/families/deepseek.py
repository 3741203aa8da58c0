"""DeepSeek V2 to V3.2, Kimi K2, GLM-4.7-Flash, GLM-5: latent attention, dense layers, then experts with shared ones.

DeepSeek V3.2 and GLM-5 attend to the tokens that an indexer chooses; GLM-5.2's
indexers each serve several layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.planners.architecture.latent_attention import LatentAttention
from plimsoll.planners.architecture.mixture_of_experts import FusedExperts
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.sparse_attention import TokenIndexer
from plimsoll.planners.families.family import Family, Serving, Tracing, Untraced
from plimsoll.planners.families.reading.assembly import blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.experts import (
    FeedForwards,
    MixtureNames,
    SharedExperts,
    Sized,
    counted,
    layer_kind,
    read_mixture,
)
from plimsoll.planners.families.reading.layer_kinds import DenseLayers, dense_layers, named_dense_layers, named_layers
from plimsoll.planners.families.reading.multi_token import multi_token_assumptions
from plimsoll.planners.families.reading.sublayers import latent_sublayer, layer_of

# Defaults of transformers' DeepseekV32Config and GlmMoeDsaConfig.
DEFAULT_INDEX_HEAD_DIM = 128
DEFAULT_CHOSEN_TOKENS = 2048
DEFAULT_FIRST_SHARING_LAYER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekDecoder:
    """What differs between the families; defaults are their config classes' own.

    `index_heads_default` is None where attention is not sparse. Only some
    families share one layer's choice of tokens with the layers after it, and only
    some name the kind of each layer's feed-forward half.
    """

    has_router_bias: bool = True  # from V3 on a bias that is kept in the checkpoint balances the experts
    first_dense_default: int = 3
    query_rank_default: int = 1536
    index_heads_default: int | None = None
    shares_indexers: bool = False
    names_dense_layers: bool = False
    has_fused_experts: bool = False
    shared_experts_default: int = 0

    def __call__(self, config: ConfigReader) -> ModelSpec:
        """Return the description of a model of this form.

        Source: `transformers` 5.23, modeling_deepseek_v2, _v3, _v32, modeling_glm4_moe_lite and
        modeling_glm_moe_dsa.
        """
        hidden_size = config.size("hidden_size")
        attention = latent_attention(config, hidden_size, query_rank_default=self.query_rank_default)
        indexer = _indexer(config, attention, self)
        if indexer is not None:
            attention = dataclasses.replace(attention, chosen_tokens=indexer.chosen_tokens)
        mixture = read_mixture(
            config,
            hidden_size,
            experts=Sized("n_routed_experts", other_keys=("num_experts",)),
            shared=SharedExperts(count=counted("n_shared_experts", self.shared_experts_default)),
            groups="n_group",
        )
        feed_forwards = FeedForwards(
            dense_width=config.size("intermediate_size"), mixture=mixture, names=self._expert_names()
        )
        bias = config.flag("attention_bias", default=False)
        config.must_be("moe_layer_freq", 1)
        config.ignore(
            "hidden_act", "topk_method", "topk_group", "norm_topk_prob", "routed_scaling_factor", "scoring_func",
            "aux_loss_alpha", "seq_aux", "ep_size", "num_key_value_heads", "rope_interleave", "head_dim", "qk_head_dim",
            "output_router_logits", "router_aux_loss_coef", "mlp_bias", "moe_router_dtype",
        )  # fmt: skip

        def layer(indices: tuple[int, ...], kind: _Kind) -> Block:
            mixer = latent_sublayer(attention, bias=bias, indexer=indexer if kind.has_indexer else None)
            feed_forward = feed_forwards.sublayer(is_dense=kind.is_dense)
            return layer_of(indices, hidden_size, mixer, feed_forward, kind=layer_kind(is_dense=kind.is_dense))

        return decoder_model(
            config,
            attention=attention,
            mixture=mixture,
            layers=blocks_by_kind(_kinds(config, self), layer),
            assumptions=multi_token_assumptions(config, "num_nextn_predict_layers"),
        )

    def _expert_names(self) -> MixtureNames:
        return MixtureNames(
            balancing_bias="gate.e_score_correction_bias" if self.has_router_bias else None,
            fused=FusedExperts.OUTPUT_FIRST if self.has_fused_experts else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What sets one layer apart from another."""

    is_dense: bool
    has_indexer: bool


def latent_attention(
    config: ConfigReader, hidden_size: int, *, query_rank_default: int | None = None
) -> LatentAttention:
    """Return the sizes of latent attention under the names DeepSeek gave them.

    A config that leaves `q_lora_rank` out has its class's default; one that says
    null projects queries straight from the hidden state.
    """
    left_out = config.is_left_out("q_lora_rank")
    return LatentAttention(
        hidden_size=hidden_size,
        heads=config.size("num_attention_heads"),
        query_rank=query_rank_default if left_out else config.optional_size("q_lora_rank"),
        key_value_rank=config.size("kv_lora_rank"),
        nope_dim=config.size("qk_nope_head_dim"),
        rope_dim=config.size("qk_rope_head_dim"),
        value_dim=config.size("v_head_dim"),
    )


def _indexer(config: ConfigReader, attention: LatentAttention, variant: DeepseekDecoder) -> TokenIndexer | None:
    if variant.index_heads_default is None:
        return None
    if attention.query_rank is None:
        raise config.error("q_lora_rank", "The indexer reads the queries' latent: 'q_lora_rank' must be given.")
    config.ignore("index_share_for_mtp_iteration", "indexer_rope_interleave")
    return TokenIndexer(
        hidden_size=attention.hidden_size,
        query_rank=attention.query_rank,
        heads=config.size("index_n_heads", default=variant.index_heads_default),
        head_dim=config.size("index_head_dim", default=DEFAULT_INDEX_HEAD_DIM),
        chosen_tokens=config.size("index_topk", default=DEFAULT_CHOSEN_TOKENS),
    )


def _kinds(config: ConfigReader, family: DeepseekDecoder) -> list[_Kind]:
    first, is_sparse = family.first_dense_default, family.index_heads_default is not None
    if family.names_dense_layers:
        dense = named_dense_layers(config, first_default=first)
    else:
        dense = dense_layers(config, DenseLayers.FIRST, first_default=first)
    num_layers = len(dense)
    if is_sparse:
        named_layers(config, "layer_types", num_layers, "indexed_attention", "deepseek_sparse_attention")
    indexed = _indexed_layers(config, num_layers) if family.shares_indexers else [is_sparse] * num_layers
    return [
        _Kind(is_dense=is_dense, has_indexer=has_indexer) for is_dense, has_indexer in zip(dense, indexed, strict=True)
    ]


def _indexed_layers(config: ConfigReader, num_layers: int) -> list[bool]:
    """Return which layers choose tokens themselves; the others take the choice of the nearest such layer before.

    Source: `transformers` 5.23, GlmMoeDsaConfig.
    """
    named = named_layers(config, "indexer_types", num_layers, "full", "shared")
    frequency = max(config.count("index_topk_freq", default=1), 1)
    offset = config.count("index_skip_topk_offset", default=DEFAULT_FIRST_SHARING_LAYER)
    pattern = config.text("index_topk_pattern", default="")
    if named is not None:
        indexed = [kind == "full" for kind in named]
    elif pattern:
        indexed = [letter == "F" for letter in pattern]
    else:
        indexed = [max(layer - offset + 1, 0) % frequency == 0 for layer in range(num_layers)]
    if len(indexed) != num_layers or set(pattern) - {"F", "S"}:
        raise config.error("index_topk_pattern", f"'index_topk_pattern' must be {num_layers} letters F or S.")
    if not indexed[0]:
        raise config.error("indexer_types", "The first layer has no layer before it to take its tokens from.")
    return indexed


FAMILIES: Mapping[str, Family] = {
    "deepseek_v2": Family(
        reader=DeepseekDecoder(has_router_bias=False, first_dense_default=0),
        has_experts=True,
        tracing=Tracing(has_latent_attention=True),
        serving=Serving(),
    ),
    "deepseek_v3": Family(
        reader=DeepseekDecoder(),
        has_experts=True,
        tracing=Tracing(has_latent_attention=True),
        serving=Serving(),
    ),
    "kimi_k2": Family(
        reader=DeepseekDecoder(),
        has_experts=True,
        untraced=Untraced.REMOTE_CODE,
        needs_remote_code=True,
    ),
    "deepseek_v32": Family(
        reader=DeepseekDecoder(index_heads_default=64, names_dense_layers=True),
    ),
    "glm_moe_dsa": Family(
        reader=DeepseekDecoder(
            query_rank_default=2048, index_heads_default=32, shares_indexers=True, names_dense_layers=True
        ),
    ),
    "glm4_moe_lite": Family(
        reader=DeepseekDecoder(
            first_dense_default=1, query_rank_default=768, shared_experts_default=1, names_dense_layers=True
        ),
    ),
    "mistral4": Family(
        reader=DeepseekDecoder(
            has_router_bias=False,
            first_dense_default=0,
            query_rank_default=1024,
            has_fused_experts=True,
            shared_experts_default=1,
        ),
    ),
}
