"""Ling 2 (bailing_moe_v2): one matrix for queries, keys and values, experts after a few dense layers."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.architecture.attention import GroupedAttention, output_projection, query_key_value_weights
from plimsoll.planners.architecture.decoder import attention_half, norm_weights
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.families.family import Family, Untraced
from plimsoll.planners.families.reading.assembly import DecoderNames, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.attention import read_attention
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
from plimsoll.planners.families.reading.layer_kinds import DenseLayers, dense_layers
from plimsoll.planners.families.reading.multi_token import multi_token_assumptions
from plimsoll.planners.families.reading.sublayers import LAYER, Sublayer, layer_of

SHARED = SharedExperts(
    count=counted("num_shared_experts"), width=Sized("moe_shared_expert_intermediate_size"), is_as_wide=True
)


def bailing_moe_v2(config: ConfigReader) -> ModelSpec:
    """Return the description of a Ling 2 model.

    Source: modeling_bailing_moe_v2.py beside the weights of Ling-1T, and the names
    that `transformers` 5.23 converts from for bailing_hybrid.
    """
    attention = read_attention(config)
    mixture = read_mixture(config, attention.hidden_size, experts=Sized("num_experts"), shared=SHARED, groups="n_group")
    feed_forwards = FeedForwards(
        dense_width=config.size("intermediate_size"),
        mixture=mixture,
        names=MixtureNames(balancing_bias="gate.expert_bias"),
    )
    config.must_be("use_qkv_bias", False)
    config.must_be("use_bias", False)
    config.must_be("use_qk_norm", True)
    config.must_be("moe_router_enable_expert_bias", True)
    config.must_be("norm_head", False)
    config.ignore(
        "embedding_dropout", "hidden_act", "max_window_layers", "mtp_loss_scaling_factor", "norm_softmax",
        "norm_topk_prob", "output_dropout", "output_router_logits", "partial_rotary_factor", "rotary_dim",
        "routed_scaling_factor", "router_dtype", "score_function", "topk_group", "use_rmsnorm", "use_sliding_window",
    )  # fmt: skip

    def layer(indices: tuple[int, ...], is_dense: bool) -> Block:
        feed_forward = feed_forwards.sublayer(is_dense=is_dense)
        kind = layer_kind(is_dense=is_dense)
        return layer_of(indices, attention.hidden_size, _attention(attention), feed_forward, kind=kind)

    return decoder_model(
        config,
        attention=attention,
        mixture=mixture,
        layers=blocks_by_kind(dense_layers(config, DenseLayers.FIRST), layer),
        names=DecoderNames(embedding="model.word_embeddings.weight"),
        assumptions=multi_token_assumptions(config, "num_nextn_predict_layers"),
    )


def _attention(size: GroupedAttention) -> Sublayer:
    prefix = f"{LAYER}.attention"
    return Sublayer(
        half=attention_half(size),
        weights=(
            *query_key_value_weights((f"{prefix}.query_key_value",), size, bias=False),
            output_projection(f"{prefix}.dense.weight", size),
            *norm_weights(f"{prefix}.query_layernorm", size.head_dim),
            *norm_weights(f"{prefix}.key_layernorm", size.head_dim),
        ),
        kv=size.kv_state(),
    )


FAMILIES: Mapping[str, Family] = {
    "bailing_moe_v2": Family(
        reader=bailing_moe_v2,
        untraced=Untraced.REMOTE_CODE,
        needs_remote_code=True,
    ),
}
