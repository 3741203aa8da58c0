"""MiniMax M3: block-sparse attention and experts after a few layers that have neither."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.planners.architecture.block_indexer import (
    BlockIndexer,
    block_indexer_weights,
    block_sparse_half,
    block_sparse_state,
)
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.families.reading.assembly import blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.attention import QueryKeyNorm, read_attention
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.experts import (
    NUMBERED_NAMES,
    FeedForwards,
    MixtureNames,
    SharedExperts,
    Sized,
    counted,
    layer_kind,
    read_mixture,
)
from plimsoll.planners.families.reading.layer_kinds import named_layers, number_of_layers, numbered_layers
from plimsoll.planners.families.reading.multi_token import multi_token_assumptions
from plimsoll.planners.families.reading.sublayers import ATTENTION, LAYER, Sublayer, attention_sublayer, layer_of

# Defaults of transformers' MiniMaxM3VLTextConfig.
DEFAULT_HEAD_DIM = 128
DEFAULT_KEY_VALUE_HEADS = 4
EXPERTS = MixtureNames(
    prefix=f"{LAYER}.block_sparse_moe", balancing_bias="e_score_correction_bias", experts=NUMBERED_NAMES
)


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
    mixture = read_mixture(
        config,
        hidden_size,
        experts=Sized("num_local_experts", 128),
        per_token=Sized("num_experts_per_tok", 4),
        width=Sized("intermediate_size", 3072),
        shared=SharedExperts(count=counted("n_shared_experts", 1), width=Sized("shared_intermediate_size", 3072)),
    )
    dense_width = config.size("dense_intermediate_size", default=12_288)
    feed_forwards = FeedForwards(dense_width=dense_width, mixture=mixture, names=EXPERTS)
    config.must_be("attention_output_gate", False)
    config.must_be("qk_norm_type", "per_head")
    config.must_be("use_qk_norm", True)
    config.must_be("use_routing_bias", True)
    config.ignore(
        "first_k_dense_replace", "hidden_act", "moe_intermediate_size", "output_router_logits", "partial_rotary_factor",
        "rotary_dim", "routed_scaling_factor", "router_aux_loss_coef", "router_jitter_noise", "scoring_func",
        "swiglu_alpha", "swiglu_limit", "use_gemma_norm",
    )  # fmt: skip

    def layer(indices: tuple[int, ...], kind: _Kind) -> Block:
        mixer = attention_sublayer(attention, norm=QueryKeyNorm.HEAD)
        if kind.is_sparse:
            mixer = Sublayer(
                half=block_sparse_half(attention, indexer),
                weights=(*mixer.weights, *block_indexer_weights(f"{ATTENTION}.index_", indexer)),
                kv=block_sparse_state(attention, indexer),
            )
        feed_forward = feed_forwards.sublayer(is_dense=kind.is_dense)
        return layer_of(indices, hidden_size, mixer, feed_forward, kind=layer_kind(is_dense=kind.is_dense))

    return decoder_model(
        config,
        attention=attention,
        mixture=mixture,
        vocabulary_size=config.size("vocab_size", default=200_064),
        layers=blocks_by_kind(kinds, layer),
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
    """Return each layer's kind, under the names of transformers or the numbers of the published config."""
    num_layers = number_of_layers(config)
    sparse = named_layers(config, "layer_types", num_layers, "minimax_m3_sparse", "full_attention")
    if sparse is None:
        numbers = numbered_layers(section, "sparse_attention_freq", num_layers, 0, 1) or (0,) * num_layers
        sparse = tuple("minimax_m3_sparse" if number else "full_attention" for number in numbers)
    experts = named_layers(config, "mlp_layer_types", num_layers, "sparse", "dense")
    if experts is None:
        numbers = numbered_layers(config, "moe_layer_freq", num_layers, 0, 1) or (1,) * num_layers
        experts = tuple("sparse" if number else "dense" for number in numbers)
    return [
        _Kind(is_sparse=attention == "minimax_m3_sparse", is_dense=feed_forward == "dense")
        for attention, feed_forward in zip(sparse, experts, strict=True)
    ]
