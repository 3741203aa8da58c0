"""ChatGLM: the first one is GPT-like, the later ones are built like Llama; one `model_type` stands for all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from plimsoll.planners.architecture.model import ModelSpec
from plimsoll.planners.families.family import Family, Untraced
from plimsoll.planners.families.fused import chatglm2
from plimsoll.planners.families.reading.assembly import DecoderNames
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.gpt import GptDecoder, GptKeys

CHATGLM_1 = GptDecoder(
    keys=GptKeys(
        hidden=("hidden_size",),
        layers=("num_layers",),
        heads=("num_attention_heads",),
        inner=("inner_hidden_size",),
        positions=("max_sequence_length",),
    ),
    layer="transformer.layers.{layer}",
    query_key_value=("attention.query_key_value",),
    output="attention.dense",
    feed_forward=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    norm_names=("input_layernorm", "post_attention_layernorm"),
    names=DecoderNames(embedding="transformer.word_embeddings.weight", final_norm="transformer.final_layernorm"),
    has_rotary=True,
    ignored=(
        "gmask_token_id", "image_token_id", "layernorm_epsilon", "mask_token_id", "position_encoding_2d", "pre_seq_len",
        "prefix_projection", "quantization_bit", "quantization_embeddings",
    ),
)  # fmt: skip
PREFIX_NOTE = (
    "Attention is planned as causal; ChatGLM-6B lets the tokens of its prompt see each other, which adds work in "
    "proportion to the prompt."
)


def chatglm(config: ConfigReader) -> ModelSpec:
    """Return the first ChatGLM where `inner_hidden_size` is given, else a later one.

    Source: zai-org/chatglm-6b, modeling_chatglm.py.
    """
    if config.is_absent("inner_hidden_size"):
        return chatglm2(config)
    spec = CHATGLM_1(config)
    return dataclasses.replace(spec, assumptions=(*spec.assumptions, PREFIX_NOTE))


FAMILIES: Mapping[str, Family] = {
    "chatglm": Family(
        reader=chatglm,
        untraced=Untraced.REMOTE_CODE,
        needs_remote_code=True,
    ),
}
