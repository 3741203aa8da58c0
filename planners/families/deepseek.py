"""DeepSeek V2 to V3.2, Kimi K2, GLM-4.7-Flash, GLM-5: latent attention, dense layers, then experts with shared ones.

DeepSeek V3.2 and GLM-5 attend to the tokens that an indexer chooses; GLM-5.2's
indexers each serve several layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.planners.architecture.decoder import (
    decoder_layer,
    feed_forward_half,
    latent_attention_half,
    mixture_half,
    norm_weights,
)
from plimsoll.planners.architecture.feed_forward import gated_weights
from plimsoll.planners.architecture.latent_attention import LatentAttention, latent_weights
from plimsoll.planners.architecture.mixture_of_experts import (
    FusedExperts,
    MixtureOfExperts,
    expert_weights,
    fused_expert_weights,
    router_weight,
    shared_expert_weights,
)
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.sparse_attention import TokenIndexer, indexer_weights
from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.family import Family, Serving, Tracing, Untraced
from plimsoll.planners.families.reading.assembly import DecoderSizes, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.mixtures import balancing_bias_weight, checked_experts_per_token
from plimsoll.planners.families.reading.multi_token import multi_token_assumptions

LAYER = "model.layers.{layer}"
EXPERT_NAMES = ("gate_proj", "up_proj", "down_proj")
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
        """Return the description of a model of this form."""
        return _deepseek(config, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What sets one layer apart from another."""

    is_dense: bool
    has_indexer: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """What the layers of one model have in common, read from its config."""

    attention: LatentAttention
    indexer: TokenIndexer | None
    mixture: MixtureOfExperts
    intermediate_size: int
    bias: bool
    has_router_bias: bool
    has_fused_experts: bool

    def block(self, indices: tuple[int, ...], kind: _Kind) -> Block:
        """Return the layers at `indices`."""
        hidden_size = self.attention.hidden_size
        indexer = self.indexer if kind.has_indexer else None
        feed_forward = (
            feed_forward_half(hidden_size, self.intermediate_size, gated=True)
            if kind.is_dense
            else mixture_half(self.mixture)
        )
        return decoder_layer(
            layers=indices,
            hidden_size=hidden_size,
            mixer=latent_attention_half(self.attention, indexer),
            feed_forward=feed_forward,
            weights=(
                *latent_weights(f"{LAYER}.self_attn", self.attention, bias=self.bias),
                *(indexer_weights(f"{LAYER}.self_attn.indexer", indexer) if indexer is not None else ()),
                *self._feed_forward_weights(kind),
                *norm_weights(f"{LAYER}.input_layernorm", hidden_size),
                *norm_weights(f"{LAYER}.post_attention_layernorm", hidden_size),
            ),
            kv=self.attention.kv_state(index_width=indexer.head_dim if indexer is not None else 0),
            kind="dense_layer" if kind.is_dense else "expert_layer",
        )

    def _feed_forward_weights(self, kind: _Kind) -> tuple[Weight, ...]:
        prefix, mixture = f"{LAYER}.mlp", self.mixture
        if kind.is_dense:
            return gated_weights(prefix, mixture.hidden_size, self.intermediate_size)
        fused_names = (f"{prefix}.experts.gate_up_proj", f"{prefix}.experts.down_proj")
        bias = balancing_bias_weight(f"{prefix}.gate.e_score_correction_bias", mixture)
        return (
            router_weight(f"{prefix}.gate.weight", mixture),
            *((bias,) if self.has_router_bias else ()),
            *(
                fused_expert_weights(fused_names, mixture, FusedExperts.OUTPUT_FIRST)
                if self.has_fused_experts
                else expert_weights(f"{prefix}.experts.{{expert}}", mixture, names=EXPERT_NAMES)
            ),
            *shared_expert_weights(f"{prefix}.shared_experts", mixture),
        )


def _deepseek(config: ConfigReader, variant: DeepseekDecoder) -> ModelSpec:
    """Return the description of a DeepSeek-like model.

    Source: `transformers` 5.23, modeling_deepseek_v2, _v3, _v32, modeling_glm4_moe_lite and
    modeling_glm_moe_dsa.
    """
    hidden_size = config.size("hidden_size")
    attention = latent_attention(config, hidden_size, query_rank_default=variant.query_rank_default)
    indexer = _indexer(config, attention, variant)
    mixture = _mixture(config, hidden_size, shared_default=variant.shared_experts_default)
    layer = _Layer(
        attention=dataclasses.replace(attention, chosen_tokens=indexer.chosen_tokens if indexer else None),
        indexer=indexer,
        mixture=mixture,
        intermediate_size=config.size("intermediate_size"),
        bias=config.flag("attention_bias", default=False),
        has_router_bias=variant.has_router_bias,
        has_fused_experts=variant.has_fused_experts,
    )
    config.must_be("moe_layer_freq", 1)
    config.ignore(
        "hidden_act", "topk_method", "n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor", "scoring_func",
        "aux_loss_alpha", "seq_aux", "ep_size", "num_key_value_heads", "rope_interleave", "head_dim", "qk_head_dim",
        "output_router_logits", "router_aux_loss_coef", "mlp_bias", "moe_router_dtype",
    )  # fmt: skip
    return decoder_model(
        config,
        sizes=DecoderSizes(
            hidden_size=hidden_size,
            vocabulary_size=config.size("vocab_size"),
            heads=attention.heads,
            key_value_heads=attention.heads,
            experts_per_token=mixture.experts_per_token,
        ),
        layers=blocks_by_kind(_kinds(config, variant), layer.block),
        tied=config.flag("tie_word_embeddings", default=False),
        assumptions=multi_token_assumptions(config, "num_nextn_predict_layers"),
    )


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


def _kinds(config: ConfigReader, variant: DeepseekDecoder) -> list[_Kind]:
    num_layers = config.size("num_hidden_layers", most=MOST_LAYERS)
    first_dense = config.count("first_k_dense_replace", default=variant.first_dense_default)
    dense = [layer < first_dense for layer in range(num_layers)]
    indexed = [variant.index_heads_default is not None] * num_layers
    if variant.names_dense_layers:
        named = _layer_list(config, "mlp_layer_types", num_layers, known=("dense", "sparse"))
        dense = dense if named is None else [kind == "dense" for kind in named]
    if variant.index_heads_default is not None:
        _layer_list(config, "layer_types", num_layers, known=("indexed_attention", "deepseek_sparse_attention"))
    if variant.shares_indexers:
        indexed = _indexed_layers(config, num_layers)
    return [
        _Kind(is_dense=is_dense, has_indexer=has_indexer) for is_dense, has_indexer in zip(dense, indexed, strict=True)
    ]


def _indexed_layers(config: ConfigReader, num_layers: int) -> list[bool]:
    """Return which layers choose tokens themselves; the others take the choice of the nearest such layer before.

    Source: `transformers` 5.23, GlmMoeDsaConfig.
    """
    named = _layer_list(config, "indexer_types", num_layers, known=("full", "shared"))
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


def _layer_list(config: ConfigReader, key: str, num_layers: int, *, known: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return what `key` says of each layer, or None where absent; raise for another length or an unknown entry."""
    named = config.strings(key)
    config.must_be(key, *known)
    if named is not None and len(named) != num_layers:
        raise config.error(key, f"'{key}' names {len(named)} layers of {num_layers}.")
    return named


def _mixture(config: ConfigReader, hidden_size: int, *, shared_default: int) -> MixtureOfExperts:
    intermediate_size = config.size("moe_intermediate_size")
    experts = config.size(config.named("n_routed_experts", "num_experts"))
    chosen = config.size("num_experts_per_tok")
    return MixtureOfExperts(
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        experts=experts,
        experts_per_token=checked_experts_per_token(config, "num_experts_per_tok", chosen, experts),
        shared_intermediate_size=config.count("n_shared_experts", default=shared_default) * intermediate_size,
    )


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
