"""Llama 3.2 Vision: a Llama with layers between its own that attend to images, and a tower that is counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from plimsoll.planners.architecture.attention import GroupedAttention, separate_projections
from plimsoll.planners.architecture.decoder import (
    norm_weights,
    vocabulary_weight,
)
from plimsoll.planners.architecture.feed_forward import gated_weights
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.operation import Tensor
from plimsoll.planners.architecture.weight import Part, Weight
from plimsoll.planners.families.family import Family
from plimsoll.planners.families.reading.assembly import blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.attention import QueryKeyNorm, query_key_norm_weights, read_attention
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.layer_kinds import number_of_layers
from plimsoll.planners.families.reading.multimodal import Wrapper
from plimsoll.planners.families.reading.sublayers import LAYER, attention_sublayer, gated_sublayer, layer_of
from plimsoll.planners.families.reading.vision import VISION_COSMETIC, Shape, linear, norm, vision_weights

TOWER = "vision_model"
# Defaults of transformers' MllamaTextConfig and MllamaVisionConfig.
DEFAULT_KEY_VALUE_HEADS = 8
DEFAULT_CROSS_LAYERS = (3, 8, 13, 18, 23, 28, 33, 38)
DEFAULT_WIDTH = 1280
DEFAULT_ASPECT_RATIOS = 8
# Rows for the image tokens, which stand behind the vocabulary and have no row in the head.
IMAGE_ROWS = 8
CROSS_NOTE = (
    "The layers that attend to images are counted and do nothing for text alone, which is what is planned; "
    "requests with images cost more."
)


def mllama_text(config: ConfigReader) -> ModelSpec:
    """Return the description of Llama 3.2 Vision's text model as it works on text alone.

    Source: `transformers` 5.23, modeling_mllama, which skips the layers that attend
    to images where there is none.
    """
    attention = read_attention(config, key_value_heads_default=DEFAULT_KEY_VALUE_HEADS)
    hidden_size, intermediate_size = attention.hidden_size, config.size("intermediate_size")
    vocabulary_size = config.size("vocab_size")
    # The head has fewer rows than the table, so that they cannot be one.
    config.must_be("tie_word_embeddings", False)
    config.ignore("dropout", "hidden_act")
    num_layers = number_of_layers(config)
    listed = config.whole_numbers("cross_attention_layers")
    crossing = set(DEFAULT_CROSS_LAYERS if listed is None else listed)

    def layer(indices: tuple[int, ...], is_crossing: bool) -> Block:
        if is_crossing:
            return _cross_attention_layer(indices, attention, intermediate_size)
        feed_forward = gated_sublayer(hidden_size, intermediate_size)
        return layer_of(indices, hidden_size, attention_sublayer(attention), feed_forward)

    spec = decoder_model(
        config,
        attention=attention,
        vocabulary_size=vocabulary_size,
        layers=blocks_by_kind([layer in crossing for layer in range(num_layers)], layer),
        tied=False,
        assumptions=(CROSS_NOTE,) if crossing else (),
    )
    table = vocabulary_weight("model.embed_tokens.weight", vocabulary_size + IMAGE_ROWS, hidden_size, Part.EMBEDDING)
    return dataclasses.replace(spec, embedding=dataclasses.replace(spec.embedding, weights=(table,)))


def mllama_tower(config: ConfigReader) -> tuple[Weight, ...]:
    """Return the tower: plain layers, then gated ones; positions by patch and by tile."""
    config.ignore(
        *VISION_COSMETIC, "attention_heads", "intermediate_layers_indices", "norm_eps", "num_attention_heads",
        "vision_output_dim",
    )  # fmt: skip
    width, inner = config.size("hidden_size", default=DEFAULT_WIDTH), config.size("intermediate_size", default=5120)
    patch, channels = config.size("patch_size", default=14), config.size("num_channels", default=3)
    positions = (config.size("image_size", default=448) // patch) ** 2 + 1
    tiles = config.size("max_num_tiles", default=4)
    listed = config.items("supported_aspect_ratios")
    ratios = (DEFAULT_ASPECT_RATIOS if listed is None else len(listed)) + 1
    shapes: list[tuple[str, Shape]] = [
        (f"{TOWER}.class_embedding", (width,)),
        (f"{TOWER}.patch_embedding.weight", (width, channels, patch, patch)),
        (f"{TOWER}.gated_positional_embedding.gate", (1,)),
        (f"{TOWER}.gated_positional_embedding.embedding", (positions, width)),
        (f"{TOWER}.gated_positional_embedding.tile_embedding.weight", (ratios, tiles * positions * width)),
        *norm(f"{TOWER}.layernorm_pre", width),
        *norm(f"{TOWER}.layernorm_post", width),
    ]
    for side in ("pre", "post"):
        shapes.append((f"{TOWER}.{side}_tile_positional_embedding.gate", (1,)))
        shapes.append((f"{TOWER}.{side}_tile_positional_embedding.embedding.weight", (ratios, tiles * width)))
    for index in range(config.size("num_hidden_layers", default=32, most=MOST_LAYERS)):
        shapes.extend(_tower_layer(f"{TOWER}.transformer.layers.{index}", width, inner))
    for index in range(config.size("num_global_layers", default=8, most=MOST_LAYERS)):
        prefix = f"{TOWER}.global_transformer.layers.{index}"
        shapes.extend(_tower_layer(prefix, width, inner))
        shapes.extend(((f"{prefix}.gate_attn", (1,)), (f"{prefix}.gate_ffn", (1,))))
    return vision_weights(shapes)


def mllama_projector(config: ConfigReader, vision: ConfigReader, text_width: int) -> tuple[Weight, ...]:  # noqa: ARG001
    """Return the matrix from the features of several of the tower's layers to the text model."""
    width = vision.size("vision_output_dim", default=7680)
    return vision_weights(linear("multi_modal_projector", text_width, width))


def _cross_attention_layer(indices: tuple[int, ...], size: GroupedAttention, intermediate_size: int) -> Block:
    """Return a layer that only images wake: it passes text through and caches nothing of it."""
    prefix = f"{LAYER}.cross_attn"
    gates = tuple(
        Weight(name=f"{LAYER}.{name}", shape=(1,), part=Part.NORM)
        for name in ("cross_attn_attn_gate", "cross_attn_mlp_gate")
    )
    return Block(
        kind="cross_attention_layer",
        layers=indices,
        weights=(
            *separate_projections(prefix, size, qkv_bias=False, output_bias=False),
            *query_key_norm_weights(prefix, size, QueryKeyNorm.HEAD),
            *gates,
            *gated_weights(f"{LAYER}.mlp", size.hidden_size, intermediate_size),
            *norm_weights(f"{LAYER}.input_layernorm", size.hidden_size),
            *norm_weights(f"{LAYER}.post_attention_layernorm", size.hidden_size),
        ),
        tensors=(Tensor(name="residual", width=size.hidden_size),),
        operations=(),
    )


def _tower_layer(prefix: str, width: int, inner: int) -> list[tuple[str, Shape]]:
    shapes: list[tuple[str, Shape]] = []
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        shapes.extend(linear(f"{prefix}.self_attn.{name}", width, width, bias=False))
    shapes.extend(linear(f"{prefix}.mlp.fc1", inner, width))
    shapes.extend(linear(f"{prefix}.mlp.fc2", width, inner))
    shapes.extend(norm(f"{prefix}.input_layernorm", width))
    shapes.extend(norm(f"{prefix}.post_attention_layernorm", width))
    return shapes


FAMILIES: Mapping[str, Family] = {
    "mllama_text_model": Family(
        reader=mllama_text,
        class_sizes={
            "vocab_size": 128_256,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "max_position_embeddings": 131_072,
        },
    ),
    "mllama": Family(
        reader=Wrapper(
            text_type="mllama_text_model", fixed_tower=mllama_tower, tied_by_default=False, projector=mllama_projector
        ),
        wrapped_layers=("MllamaCrossAttentionDecoderLayer", "MllamaSelfAttentionDecoderLayer"),
    ),
}
