"""MPT: linear biases on the scores instead of positions, a fused QKV matrix, no biases anywhere."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.architecture.model import ModelSpec
from plimsoll.planners.families.family import Family, Untraced
from plimsoll.planners.families.reading.assembly import DecoderNames
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.gpt import FEED_FORWARD_MULTIPLE, GptDecoder, GptKeys

MPT_IGNORED = (
    "emb_pdrop", "embedding_fraction", "init_config", "init_device", "learned_pos_emb", "logit_scale", "norm_type",
    "resid_pdrop", "tokenizer_name", "verbose",
)  # fmt: skip
MPT = GptDecoder(
    keys=GptKeys(
        hidden=("d_model", "hidden_size"),
        layers=("n_layers", "num_hidden_layers"),
        heads=("n_heads", "num_attention_heads"),
        inner=(),
        positions=("max_seq_len",),
    ),
    layer="transformer.blocks.{layer}",
    query_key_value=("attn.Wqkv",),
    output="attn.out_proj",
    feed_forward=("ffn.up_proj", "ffn.down_proj"),
    norm_names=("norm_1", "norm_2"),
    names=DecoderNames(embedding="transformer.wte.weight", final_norm="transformer.norm_f"),
    qkv_bias=False,
    output_bias=False,
    feed_forward_bias=False,
    norm_bias=False,
    ignored=MPT_IGNORED,
)
ATTENTION_IGNORED = (
    "alibi_bias_max", "attn_impl", "attn_pdrop", "attn_uses_sequence_id", "clip_qkv", "softmax_scale",
)  # fmt: skip


def mpt(config: ConfigReader) -> ModelSpec:
    """Return the description of an MPT model as all published ones are.

    Options that change the weights and that no module of `transformers` builds
    are refused by name.

    Source: `transformers` 5.23, modeling_mpt.
    """
    attention = config.section("attn_config")
    attention.ignore(*ATTENTION_IGNORED)
    if attention.text("attn_type", default="multihead_attention") != "multihead_attention":
        raise attention.error("attn_type", "Only multihead_attention is described for MPT.")
    for key, usual in (("alibi", True), ("qk_ln", False), ("prefix_lm", False)):
        if attention.flag(key, default=usual) is not usual:
            raise attention.error(key, f"MPT with '{key}' {str(not usual).lower()} is not described.")
    if not config.flag("no_bias", default=True):
        raise config.error("no_bias", "MPT with biases is not described.")
    if config.size("expansion_ratio", default=FEED_FORWARD_MULTIPLE) != FEED_FORWARD_MULTIPLE:
        raise config.error("expansion_ratio", "MPT is described with a feed-forward four times as wide as the model.")
    return MPT(config)


FAMILIES: Mapping[str, Family] = {
    "mpt": Family(
        reader=mpt,
        untraced=Untraced.OWN_ATTENTION,
    ),
}
