"""DeepSeek V2 and V3: latent attention, a few dense layers, then experts with shared ones beside them."""

from __future__ import annotations

from dataclasses import dataclass

from planners.architecture.decoder import (
    decoder_layer,
    feed_forward_half,
    latent_attention_half,
    mixture_half,
    norm_weights,
)
from planners.architecture.feed_forward import gated_weights
from planners.architecture.latent_attention import LatentAttention, latent_weights
from planners.architecture.mixture_of_experts import MixtureOfExperts, expert_weights, router_weight
from planners.architecture.model import Block, ModelSpec
from planners.architecture.weight import Part, Weight
from planners.huggingface.assembly import DecoderSizes, blocks_by_kind, decoder_model
from planners.huggingface.config import MOST_LAYERS, ConfigReader

EXPERT_NAMES = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekVariant:
    """What differs between the families; defaults are their config classes' own."""

    has_router_bias: bool  # V3 balances its experts by a bias that is kept in the checkpoint
    first_dense_default: int


V2 = DeepseekVariant(has_router_bias=False, first_dense_default=0)
V3 = DeepseekVariant(has_router_bias=True, first_dense_default=3)


def deepseek(config: ConfigReader, name: str, model_type: str, variant: DeepseekVariant) -> ModelSpec:
    """Return the description of a DeepSeek V2- or V3-like model.

    The multi-token prediction layers of V3 stand in the checkpoint beside the
    model; training and serving without them is the default everywhere, so they
    are not counted here.

    Source: `transformers` 5.23, modeling_deepseek_v2 and modeling_deepseek_v3.
    """
    hidden_size = config.size("hidden_size")
    attention = latent_attention(config, hidden_size)
    mixture = _mixture(config, hidden_size)
    intermediate_size = config.size("intermediate_size")
    bias = config.flag("attention_bias", default=False)
    num_layers = config.size("num_hidden_layers", most=MOST_LAYERS)
    first_dense = config.count("first_k_dense_replace", default=variant.first_dense_default)
    config.ignore(
        "hidden_act", "topk_method", "n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor", "scoring_func",
        "aux_loss_alpha", "seq_aux", "moe_layer_freq", "ep_size", "num_nextn_predict_layers", "num_key_value_heads",
        "rope_interleave", "head_dim", "qk_head_dim", "output_router_logits",
    )  # fmt: skip

    def layer(indices: tuple[int, ...], dense: bool) -> Block:
        prefix = "model.layers.{layer}"
        feed_forward_weights = (
            gated_weights(f"{prefix}.mlp", hidden_size, intermediate_size)
            if dense
            else _mixture_weights(f"{prefix}.mlp", mixture, has_router_bias=variant.has_router_bias)
        )
        return decoder_layer(
            layers=indices,
            hidden_size=hidden_size,
            mixer=latent_attention_half(attention),
            feed_forward=(
                feed_forward_half(hidden_size, intermediate_size, gated=True) if dense else mixture_half(mixture)
            ),
            weights=(
                *latent_weights(f"{prefix}.self_attn", attention, bias=bias),
                *feed_forward_weights,
                *norm_weights(f"{prefix}.input_layernorm", hidden_size),
                *norm_weights(f"{prefix}.post_attention_layernorm", hidden_size),
            ),
            kv=attention.kv_state(),
            kind="dense_layer" if dense else "expert_layer",
        )

    return decoder_model(
        config,
        name=name,
        model_type=model_type,
        sizes=DecoderSizes(
            hidden_size=hidden_size,
            vocabulary_size=config.size("vocab_size"),
            heads=attention.heads,
            key_value_heads=attention.heads,
            experts_per_token=mixture.experts_per_token,
        ),
        layers=blocks_by_kind([index < first_dense for index in range(num_layers)], layer),
        tied=config.flag("tie_word_embeddings", default=False),
    )


def latent_attention(config: ConfigReader, hidden_size: int) -> LatentAttention:
    """Return the sizes of latent attention under the names DeepSeek gave them."""
    return LatentAttention(
        hidden_size=hidden_size,
        heads=config.size("num_attention_heads"),
        query_rank=config.optional_size("q_lora_rank"),
        key_value_rank=config.size("kv_lora_rank"),
        nope_dim=config.size("qk_nope_head_dim"),
        rope_dim=config.size("qk_rope_head_dim"),
        value_dim=config.size("v_head_dim"),
    )


def _mixture(config: ConfigReader, hidden_size: int) -> MixtureOfExperts:
    intermediate_size = config.size("moe_intermediate_size")
    shared = config.count("n_shared_experts", default=0)
    return MixtureOfExperts(
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        experts=config.size("n_routed_experts"),
        experts_per_token=config.size("num_experts_per_tok"),
        shared_intermediate_size=shared * intermediate_size,
    )


def _mixture_weights(prefix: str, mixture: MixtureOfExperts, *, has_router_bias: bool) -> tuple[Weight, ...]:
    bias = Weight(
        name=f"{prefix}.gate.e_score_correction_bias", shape=(mixture.experts,), part=Part.ROUTER, is_buffer=True
    )
    shared = (
        gated_weights(
            f"{prefix}.shared_experts", mixture.hidden_size, mixture.shared_intermediate_size, part=Part.SHARED_EXPERT
        )
        if mixture.shared_intermediate_size
        else ()
    )
    return (
        router_weight(f"{prefix}.gate.weight", mixture),
        *((bias,) if has_router_bias else ()),
        *expert_weights(f"{prefix}.experts.{{expert}}", mixture, names=EXPERT_NAMES),
        *shared,
    )
