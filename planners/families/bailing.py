"""Ling 2 (bailing_moe_v2): one matrix for queries, keys and values, experts after a few dense layers."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.architecture.attention import output_projection, query_key_value_weights
from plimsoll.planners.architecture.decoder import (
    attention_half,
    decoder_layer,
    feed_forward_half,
    mixture_half,
    norm_weights,
)
from plimsoll.planners.architecture.feed_forward import gated_weights
from plimsoll.planners.architecture.mixture_of_experts import (
    MixtureOfExperts,
    expert_weights,
    router_weight,
    shared_expert_weights,
)
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Part, Weight
from plimsoll.planners.families.family import Family, Untraced
from plimsoll.planners.families.reading.assembly import DecoderNames, DecoderSizes, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.dense import read_attention
from plimsoll.planners.families.reading.mixtures import (
    DenseLayers,
    balancing_bias_weight,
    checked_experts_per_token,
    dense_layers,
)
from plimsoll.planners.families.reading.multi_token import multi_token_assumptions

LAYER = "model.layers.{layer}"
EXPERT_NAMES = ("gate_proj", "up_proj", "down_proj")


def bailing_moe_v2(config: ConfigReader) -> ModelSpec:
    """Return the description of a Ling 2 model.

    Source: modeling_bailing_moe_v2.py beside the weights of Ling-1T, and the names
    that `transformers` 5.23 converts from for bailing_hybrid.
    """
    attention = read_attention(config)
    hidden_size, mixture = attention.hidden_size, _mixture(config, attention.hidden_size)
    intermediate_size = config.size("intermediate_size")
    config.must_be("use_qkv_bias", False)
    config.must_be("use_bias", False)
    config.must_be("use_qk_norm", True)
    config.must_be("moe_router_enable_expert_bias", True)
    config.must_be("norm_head", False)
    config.ignore(
        "embedding_dropout", "hidden_act", "max_window_layers", "mtp_loss_scaling_factor", "n_group", "norm_softmax",
        "norm_topk_prob", "output_dropout", "output_router_logits", "partial_rotary_factor", "rotary_dim",
        "routed_scaling_factor", "router_dtype", "score_function", "topk_group", "use_rmsnorm", "use_sliding_window",
    )  # fmt: skip

    def layer(indices: tuple[int, ...], is_dense: bool) -> Block:
        prefix = f"{LAYER}.attention"
        return decoder_layer(
            layers=indices,
            hidden_size=hidden_size,
            mixer=attention_half(attention),
            feed_forward=(
                feed_forward_half(hidden_size, intermediate_size, gated=True) if is_dense else mixture_half(mixture)
            ),
            kv=attention.kv_state(),
            kind="dense_layer" if is_dense else "expert_layer",
            weights=(
                *query_key_value_weights((f"{prefix}.query_key_value",), attention, bias=False),
                output_projection(f"{prefix}.dense.weight", attention),
                *(
                    Weight(name=f"{prefix}.{part}_layernorm.weight", shape=(attention.head_dim,), part=Part.NORM)
                    for part in ("query", "key")
                ),
                *(gated_weights(f"{LAYER}.mlp", hidden_size, intermediate_size) if is_dense else _experts(mixture)),
                *norm_weights(f"{LAYER}.input_layernorm", hidden_size),
                *norm_weights(f"{LAYER}.post_attention_layernorm", hidden_size),
            ),
        )

    return decoder_model(
        config,
        sizes=DecoderSizes(
            hidden_size=hidden_size,
            vocabulary_size=config.size("vocab_size"),
            heads=attention.heads,
            key_value_heads=attention.key_value_heads,
            experts_per_token=mixture.experts_per_token,
        ),
        layers=blocks_by_kind(dense_layers(config, DenseLayers.FIRST), layer),
        tied=config.flag("tie_word_embeddings", default=False),
        names=DecoderNames(embedding="model.word_embeddings.weight"),
        assumptions=multi_token_assumptions(config, "num_nextn_predict_layers"),
    )


def _mixture(config: ConfigReader, hidden_size: int) -> MixtureOfExperts:
    width, experts = config.size("moe_intermediate_size"), config.size("num_experts")
    chosen = config.size("num_experts_per_tok")
    shared = config.count("num_shared_experts", default=0)
    return MixtureOfExperts(
        hidden_size=hidden_size,
        intermediate_size=width,
        experts=experts,
        experts_per_token=checked_experts_per_token(config, "num_experts_per_tok", chosen, experts),
        shared_intermediate_size=shared * config.size("moe_shared_expert_intermediate_size", default=width),
    )


def _experts(mixture: MixtureOfExperts) -> tuple[Weight, ...]:
    prefix = f"{LAYER}.mlp"
    return (
        router_weight(f"{prefix}.gate.weight", mixture),
        balancing_bias_weight(f"{prefix}.gate.expert_bias", mixture),
        *expert_weights(f"{prefix}.experts.{{expert}}", mixture, names=EXPERT_NAMES),
        *shared_expert_weights(f"{prefix}.shared_experts", mixture),
    )


FAMILIES: Mapping[str, Family] = {
    "bailing_moe_v2": Family(
        reader=bailing_moe_v2,
        untraced=Untraced.REMOTE_CODE,
        needs_remote_code=True,
    ),
}
