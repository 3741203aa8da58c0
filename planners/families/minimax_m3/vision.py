"""The weights of MiniMax M3's vision tower and its two-step projector."""

from __future__ import annotations

from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.vision import VISION_COSMETIC, Shape, linear, norm, vision_weights

TOWER = "vision_tower.vision_model"
COSMETIC = (
    "image_size", "img_token_compression_config", "num_attention_heads", "position_embedding_type", "rope_mode",
    "spatial_merge_size", "vision_segment_max_frames",
)  # fmt: skip
# Defaults of transformers' MiniMaxM3VLVisionConfig.
DEFAULT_WIDTH = 1280
DEFAULT_MERGED_SIDE = 2


def minimax_m3_tower(config: ConfigReader) -> tuple[Weight, ...]:
    """Return the tower, whose patches span two frames. Source: `transformers` 5.23, modeling_minimax_m3_vl."""
    config.ignore(*VISION_COSMETIC, *COSMETIC)
    width, inner = config.size("hidden_size", default=DEFAULT_WIDTH), config.size("intermediate_size", default=5120)
    patch, frames = config.size("patch_size", default=14), config.size("temporal_patch_size", default=2)
    channels = config.size("num_channels", default=3)
    shapes: list[tuple[str, Shape]] = [
        (f"{TOWER}.embeddings.patch_embedding.weight", (width, channels, frames, patch, patch)),
        *norm(f"{TOWER}.pre_layrnorm", width),
    ]
    for index in range(config.size("num_hidden_layers", default=32, most=MOST_LAYERS)):
        prefix = f"{TOWER}.encoder.layers.{index}"
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes.extend(linear(f"{prefix}.self_attn.{name}", width, width))
        shapes.extend(norm(f"{prefix}.layer_norm1", width))
        shapes.extend(norm(f"{prefix}.layer_norm2", width))
        shapes.extend(linear(f"{prefix}.mlp.fc1", inner, width))
        shapes.extend(linear(f"{prefix}.mlp.fc2", width, inner))
    return vision_weights(shapes)


def minimax_m3_projector(config: ConfigReader, vision: ConfigReader, text_width: int) -> tuple[Weight, ...]:
    """Return the projector of each patch, and of a square of patches merged into one token."""
    config.must_be("multimodal_projector_bias", True)
    config.ignore(
        "img_token_compression_config", "num_reward_heads", "process_image_mode", "vision_feature_layer",
    )  # fmt: skip
    width = vision.size("hidden_size", default=DEFAULT_WIDTH)
    merged = text_width * vision.size("spatial_merge_size", default=DEFAULT_MERGED_SIDE) ** 2
    inner = config.size("projector_hidden_size", default=6144)
    return vision_weights(
        (
            *linear("multi_modal_projector.linear_1", inner, width),
            *linear("multi_modal_projector.linear_2", text_width, inner),
            *linear("patch_merge_mlp.linear_1", inner, merged),
            *linear("patch_merge_mlp.linear_2", text_width, inner),
        )
    )
