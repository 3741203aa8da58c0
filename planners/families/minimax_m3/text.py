"""MiniMax M3: block-sparse attention and experts after a few layers that have neither."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.planners.architecture.attention import separate_projections
from plimsoll.planners.architecture.block_indexer import (
    BlockIndexer,
    block_indexer_weights,
    block_sparse_half,
    block_sparse_state,
)
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
from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.reading.assembly import DecoderSizes, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.dense import QueryKeyNorm, query_key_norm_weights, read_attention
from plimsoll.planners.families.reading.mixtures import balancing_bias_weight, checked_experts_per_token
from plimsoll.planners.families.reading.multi_token import multi_token_assumptions

LAYER = "model.layers.{layer}"
EXPERT_NAMES = ("w1", "w3", "w2")
# Defaults of transformers' MiniMaxM3VLTextConfig.
DEFAULT_HEAD_DIM = 128
DEFAULT_KEY_VALUE_HEADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What sets one layer apart from another."""

    is_sparse: bool
    is_dense: bool


def minimax_m3_text(config: ConfigReader) -> ModelSpec:
    """Return the description of a MiniMax M3 text model. Source: `transformers` 5.23, modeling_minimax_m3_vl."""
    attention = read_attention(
        config, head_dim_default=DEFAULT_HEAD_DIM, key_value_heads_default=DEFAULT_KEY_VALUE_HEADS
    )
    hidden_size = attention.hidden_size
    sparsity = config.section("sparse_attention_config")
    kinds, indexer = _kinds(config, sparsity), _indexer(config, sparsity, hidden_size)
    mixture = _mixture(config, hidden_size)
    intermediate_size = config.size("dense_intermediate_size", default=12_288)
    config.must_be("attention_output_gate", False)
    config.must_be("qk_norm_type", "per_head")
    config.must_be("use_qk_norm", True)
    config.must_be("use_routing_bias", True)
    config.ignore(
        "first_k_dense_replace", "hidden_act", "output_router_logits", "partial_rotary_factor", "rotary_dim",
        "routed_scaling_factor", "router_aux_loss_coef", "router_jitter_noise", "scoring_func", "swiglu_alpha",
        "swiglu_limit", "use_gemma_norm",
    )  # fmt: skip

    def layer(indices: tuple[int, ...], kind: _Kind) -> Block:
        prefix = f"{LAYER}.self_attn"
        return decoder_layer(
            layers=indices,
            hidden_size=hidden_size,
            mixer=block_sparse_half(attention, indexer) if kind.is_sparse else attention_half(attention),
            feed_forward=(
                feed_forward_half(hidden_size, intermediate_size, gated=True)
                if kind.is_dense
                else mixture_half(mixture)
            ),
            kv=block_sparse_state(attention, indexer) if kind.is_sparse else attention.kv_state(),
            kind="dense_layer" if kind.is_dense else "expert_layer",
            weights=(
                *separate_projections(prefix, attention, qkv_bias=False, output_bias=False),
                *query_key_norm_weights(prefix, attention, QueryKeyNorm.HEAD),
                *(block_indexer_weights(f"{prefix}.index_", indexer) if kind.is_sparse else ()),
                *(
                    gated_weights(f"{LAYER}.mlp", hidden_size, intermediate_size)
                    if kind.is_dense
                    else _mixture_weights(mixture)
                ),
                *norm_weights(f"{LAYER}.input_layernorm", hidden_size),
                *norm_weights(f"{LAYER}.post_attention_layernorm", hidden_size),
            ),
        )

    return decoder_model(
        config,
        sizes=DecoderSizes(
            hidden_size=hidden_size,
            vocabulary_size=config.size("vocab_size", default=200_064),
            heads=attention.heads,
            key_value_heads=attention.key_value_heads,
            experts_per_token=mixture.experts_per_token,
        ),
        layers=blocks_by_kind(kinds, layer),
        tied=config.flag("tie_word_embeddings", default=False),
        # The text model's own config counts the layers of one module under a second name.
        assumptions=multi_token_assumptions(config, config.named("num_mtp_modules", "num_nextn_predict_layers")),
    )


def _indexer(config: ConfigReader, section: ConfigReader, hidden_size: int) -> BlockIndexer:
    """Return the indexer, whose sizes published configs hold in a section of their own."""
    section.must_be("use_sparse_attention", True)
    section.must_be("sparse_disable_index_value", 0, 1)
    section.ignore("sparse_init_block", "sparse_local_block", "sparse_score_type")
    config.ignore("index_local_blocks")
    sizes = {
        key: section.size(published, default=config.size(key, default=default))
        for key, published, default in (
            ("index_n_heads", "sparse_num_index_heads", 4),
            ("index_head_dim", "sparse_index_dim", 128),
            ("index_block_size", "sparse_block_size", 128),
            ("index_topk_blocks", "sparse_topk_blocks", 16),
        )
    }
    return BlockIndexer(
        hidden_size=hidden_size,
        heads=sizes["index_n_heads"],
        head_dim=sizes["index_head_dim"],
        block_tokens=sizes["index_block_size"],
        chosen_blocks=sizes["index_topk_blocks"],
    )


def _kinds(config: ConfigReader, section: ConfigReader) -> list[_Kind]:
    num_layers = config.size("num_hidden_layers", most=MOST_LAYERS)
    sparse = _flags(config, "layer_types", num_layers, "minimax_m3_sparse", "full_attention")
    if sparse is None:
        sparse = _zeros_and_ones(section, "sparse_attention_freq", num_layers) or [False] * num_layers
    experts = _flags(config, "mlp_layer_types", num_layers, "sparse", "dense")
    if experts is None:
        experts = _zeros_and_ones(config, "moe_layer_freq", num_layers) or [True] * num_layers
    return [
        _Kind(is_sparse=is_sparse, is_dense=not has_experts)
        for is_sparse, has_experts in zip(sparse, experts, strict=True)
    ]


def _flags(config: ConfigReader, key: str, num_layers: int, wanted: str, other: str) -> list[bool] | None:
    named = config.strings(key)
    config.must_be(key, wanted, other)
    if named is None:
        return None
    _check_length(config, key, num_layers, len(named))
    return [kind == wanted for kind in named]


def _zeros_and_ones(config: ConfigReader, key: str, num_layers: int) -> list[bool] | None:
    numbers = config.whole_numbers(key)
    config.must_be(key, 0, 1)
    if numbers is None:
        return None
    _check_length(config, key, num_layers, len(numbers))
    return [bool(number) for number in numbers]


def _check_length(config: ConfigReader, key: str, num_layers: int, length: int) -> None:
    if length != num_layers:
        raise config.error(key, f"'{key}' names {length} layers of {num_layers}.")


def _mixture(config: ConfigReader, hidden_size: int) -> MixtureOfExperts:
    config.ignore("moe_intermediate_size")
    experts = config.size("num_local_experts", default=128)
    chosen = config.size("num_experts_per_tok", default=4)
    width = config.size("shared_intermediate_size", default=3072)
    return MixtureOfExperts(
        hidden_size=hidden_size,
        intermediate_size=config.size("intermediate_size", default=3072),
        experts=experts,
        experts_per_token=checked_experts_per_token(config, "num_experts_per_tok", chosen, experts),
        shared_intermediate_size=width * config.count("n_shared_experts", default=1),
    )


def _mixture_weights(mixture: MixtureOfExperts) -> tuple[Weight, ...]:
    prefix = f"{LAYER}.block_sparse_moe"
    return (
        router_weight(f"{prefix}.gate.weight", mixture),
        balancing_bias_weight(f"{prefix}.e_score_correction_bias", mixture),
        *expert_weights(f"{prefix}.experts.{{expert}}", mixture, names=EXPERT_NAMES),
        *shared_expert_weights(f"{prefix}.shared_experts", mixture),
    )
