"""The weights of Gemma 4's vision tower and its projector."""

from __future__ import annotations

from plimsoll.planners.architecture.weight import Part, Weight
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.vision import VISION_COSMETIC, Shape, linear, norm, vision_weights

TOWER = "model.vision_tower"
NORM_NAMES = (
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
)  # fmt: skip
COSMETIC = (
    "chunk_size_feed_forward", "default_output_length", "global_head_dim", "hidden_activation", "image_seq_length",
    "is_encoder_decoder", "max_position_embeddings", "output_attentions", "output_hidden_states",
    "pooling_kernel_size", "problem_type", "return_dict", "video_seq_length",
)  # fmt: skip
# The class's own width, in transformers' Gemma4VisionConfig.
DEFAULT_WIDTH = 768


def gemma4_tower(config: ConfigReader) -> tuple[Weight, ...]:
    """Return the tower, whose positions are two tables, one a direction.

    Source: `transformers` 5.23, modeling_gemma4.
    """
    config.must_be("attention_bias", False)
    config.must_be("use_clipped_linears", False)
    config.ignore(*VISION_COSMETIC, *COSMETIC)
    width, patch = config.size("hidden_size", default=DEFAULT_WIDTH), config.size("patch_size", default=16)
    positions = config.size("position_embedding_size", default=10_240)
    shapes: list[tuple[str, Shape]] = [
        (f"{TOWER}.patch_embedder.position_embedding_table", (2, positions, width)),
        *linear(f"{TOWER}.patch_embedder.input_proj", width, 3 * patch * patch, bias=False),
    ]
    for index in range(config.size("num_hidden_layers", default=16, most=MOST_LAYERS)):
        shapes.extend(_layer(config, f"{TOWER}.encoder.layers.{index}", width))
    names = ("std_bias", "std_scale") if config.flag("standardize", default=False) else ()
    buffers = tuple(Weight(name=f"{TOWER}.{name}", shape=(width,), part=Part.VISION, is_buffer=True) for name in names)
    return (*vision_weights(shapes), *buffers)


def gemma4_projector(config: ConfigReader, vision: ConfigReader, text_width: int) -> tuple[Weight, ...]:
    """Return the projector, one matrix; a model with ears as well is refused."""
    if not config.is_absent("audio_config"):
        raise config.error("audio_config", "Gemma 4's audio tower is not described.")
    config.ignore(
        "audio_config", "boa_token_id", "boi_token_id", "eoa_token_id", "eoa_token_index", "eoi_token_id",
        "vision_soft_tokens_per_image",
    )  # fmt: skip
    width = vision.size("hidden_size", default=DEFAULT_WIDTH)
    return vision_weights(linear("model.embed_vision.embedding_projection", text_width, width, bias=False))


def _layer(config: ConfigReader, prefix: str, width: int) -> list[tuple[str, Shape]]:
    """Return one layer's weights; its matrices stand in a module of their own, `linear`."""
    inner = config.size("intermediate_size", default=3072)
    heads, head_dim = config.size("num_attention_heads", default=12), config.size("head_dim", default=64)
    key_value_heads = config.size("num_key_value_heads", default=12)
    shapes: list[tuple[str, Shape]] = []
    for name, count in (("q_proj", heads), ("k_proj", key_value_heads), ("v_proj", key_value_heads)):
        shapes.extend(linear(f"{prefix}.self_attn.{name}.linear", count * head_dim, width, bias=False))
    shapes.extend(linear(f"{prefix}.self_attn.o_proj.linear", width, heads * head_dim, bias=False))
    for name in ("q_norm", "k_norm"):
        shapes.extend(norm(f"{prefix}.self_attn.{name}", head_dim, bias=False))
    for name in ("gate_proj", "up_proj"):
        shapes.extend(linear(f"{prefix}.mlp.{name}.linear", inner, width, bias=False))
    shapes.extend(linear(f"{prefix}.mlp.down_proj.linear", width, inner, bias=False))
    for name in NORM_NAMES:
        shapes.extend(norm(f"{prefix}.{name}", width, bias=False))
    return shapes
