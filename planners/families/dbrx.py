"""DBRX: one matrix for queries, keys and values, and one matrix for each of the experts' three projections."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.architecture.attention import GroupedAttention, output_projection
from plimsoll.planners.architecture.decoder import attention_half, decoder_layer, mixture_half, norm_weights
from plimsoll.planners.architecture.mixture_of_experts import MixtureOfExperts, router_weight
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Part, Split, Weight
from plimsoll.planners.families.family import Family, Untraced
from plimsoll.planners.families.reading.assembly import DecoderNames, decoder_model
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.experts import Sized, read_mixture

NAMES = DecoderNames(embedding="transformer.wte.weight", final_norm="transformer.norm_f")
# The default of transformers' DbrxAttentionConfig; the experts' are those of its DbrxFFNConfig.
DEFAULT_KEY_VALUE_HEADS = 1


def dbrx(config: ConfigReader) -> ModelSpec:
    """Return the description of a DBRX model. Source: `transformers` 5.23, modeling_dbrx."""
    attention = _attention(config)
    mixture = _mixture(config, attention.hidden_size)
    config.must_be("tie_word_embeddings", False)
    config.ignore("emb_pdrop", "output_router_logits", "resid_pdrop", "router_aux_loss_coef")
    layers = _layers(config, attention, mixture)
    return decoder_model(
        config,
        attention=attention,
        mixture=mixture,
        layers=(layers,),
        tied=False,
        names=NAMES,
        max_position_embeddings=config.optional_size("max_seq_len"),
    )


def _layers(config: ConfigReader, attention: GroupedAttention, mixture: MixtureOfExperts) -> Block:
    prefix, hidden_size = "transformer.blocks.{layer}", attention.hidden_size
    return decoder_layer(
        layers=tuple(range(config.size("n_layers", most=MOST_LAYERS))),
        hidden_size=hidden_size,
        mixer=attention_half(attention),
        feed_forward=mixture_half(mixture),
        kv=attention.kv_state(),
        kind="expert_layer",
        weights=(
            _fused_projections(f"{prefix}.norm_attn_norm.attn.Wqkv.weight", attention),
            output_projection(f"{prefix}.norm_attn_norm.attn.out_proj.weight", attention),
            router_weight(f"{prefix}.ffn.router.layer.weight", mixture),
            *_expert_weights(f"{prefix}.ffn.experts.mlp", mixture),
            *norm_weights(f"{prefix}.norm_attn_norm.norm_1", hidden_size),
            *norm_weights(f"{prefix}.norm_attn_norm.norm_2", hidden_size),
        ),
    )


def _attention(config: ConfigReader) -> GroupedAttention:
    hidden_size, heads = config.size("d_model"), config.size("n_heads")
    config.must_divide("n_heads", heads, "d_model", hidden_size)
    section = config.section("attn_config")
    key_value_heads = section.size("kv_n_heads", default=DEFAULT_KEY_VALUE_HEADS)
    section.must_divide("kv_n_heads", key_value_heads, "n_heads", heads)
    section.ignore("attn_pdrop", "clip_qkv")
    return GroupedAttention(
        hidden_size=hidden_size, heads=heads, key_value_heads=key_value_heads, head_dim=hidden_size // heads
    )


def _mixture(config: ConfigReader, hidden_size: int) -> MixtureOfExperts:
    section = config.section("ffn_config")
    section.ignore(
        "ffn_act_fn", "hidden_size", "moe_jitter_eps", "moe_loss_weight", "moe_normalize_expert_weights",
        "uniform_expert_assignment",
    )  # fmt: skip
    return read_mixture(
        section,
        hidden_size,
        experts=Sized("moe_num_experts", 4),
        per_token=Sized("moe_top_k", 1),
        width=Sized("ffn_hidden_size", 3584),
    )


def _fused_projections(name: str, size: GroupedAttention) -> Weight:
    """Return queries, keys and values one after the other, each divided by its own heads."""
    sections = (
        (size.query_width, size.heads),
        (size.key_value_width, size.key_value_heads),
        (size.value_width, size.key_value_heads),
    )
    return Weight(
        name=name,
        shape=(sum(width for width, _ in sections), size.hidden_size),
        part=Part.ATTENTION,
        split=Split.COLUMN,
        dim=0,
        sections=sections,
        is_linear=True,
    )


def _expert_weights(prefix: str, size: MixtureOfExperts) -> tuple[Weight, ...]:
    """Return gate (w1), up (v1) and down (w2): the experts' rows one after the other in one matrix.

    All three are [experts x inner, hidden], down being transposed, so that
    dimension 0 is what tensor parallelism divides, expert by expert, in each.
    """
    return tuple(
        Weight(
            name=f"{prefix}.{short}",
            shape=(size.experts * size.intermediate_size, size.hidden_size),
            part=Part.EXPERT,
            split=split,
            dim=0,
            sections=((size.intermediate_size, 0),) * size.experts,
            experts=size.experts,
            is_linear=True,
            is_fused=True,
        )
        for short, split in (("w1", Split.COLUMN), ("v1", Split.COLUMN), ("w2", Split.ROW))
    )


FAMILIES: Mapping[str, Family] = {
    "dbrx": Family(
        reader=dbrx,
        untraced=Untraced.BY_VALUE,
    ),
}
