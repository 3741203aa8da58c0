"""The vision towers and projectors of Kimi K2.5 (MoonViT-3d) and of Kimi-VL (MoonViT, of the same weights)."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.family import Family
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.multimodal import Wrapper
from plimsoll.planners.families.reading.vision import VISION_COSMETIC, Shape, linear, norm, tower_layers, vision_weights

# Defaults of transformers' Kimi_K25VisionConfig and Kimi_K25Config.
DEFAULT_DEPTH = 27
DEFAULT_WIDTH = 1152
DEFAULT_INNER_WIDTH = 4304
DEFAULT_PATCH = 14
DEFAULT_POSITIONS_A_SIDE = 64
COLOURS = 3
MERGED_PATCHES = 4


def kimi_k25_tower(config: ConfigReader) -> tuple[Weight, ...]:
    """Return the tower under the names of the published checkpoint.

    The published config and transformers' own name its sizes differently.

    Source: `transformers` 5.23, modeling_kimi_k25 and conversion_mapping.
    """
    config.ignore(
        *VISION_COSMETIC, "_attn_implementation", "init_pos_emb_time", "merge_type", "mm_projector_type",
        "num_attention_heads", "pos_emb_time", "pos_emb_type", "projector_ln_eps", "text_hidden_size",
        "video_attn_type", "vt_num_attention_heads",
    )  # fmt: skip
    width = _width(config)
    inner = config.size(config.named("vt_intermediate_size", "intermediate_size"), default=DEFAULT_INNER_WIDTH)
    patch = config.size("patch_size", default=DEFAULT_PATCH)
    height = config.size(config.named("init_pos_emb_height", "pos_emb_height"), default=DEFAULT_POSITIONS_A_SIDE)
    breadth = config.size(config.named("init_pos_emb_width", "pos_emb_width"), default=DEFAULT_POSITIONS_A_SIDE)
    depth = config.size(
        config.named("vt_num_hidden_layers", "num_hidden_layers"), default=DEFAULT_DEPTH, most=MOST_LAYERS
    )
    shapes: list[tuple[str, Shape]] = [
        ("vision_tower.patch_embed.proj.weight", (width, COLOURS, patch, patch)),
        ("vision_tower.patch_embed.proj.bias", (width,)),
        ("vision_tower.patch_embed.pos_emb.weight", (height, breadth, width)),
        *norm("vision_tower.encoder.final_layernorm", width),
    ]
    layers = tower_layers(
        "vision_tower.encoder.blocks",
        depth,
        width,
        inner,
        attention=("wqkv", "wo"),
        feed_forward=("mlp.fc0", "mlp.fc1"),
        norms=("norm0", "norm1"),
    )
    return vision_weights((*shapes, *layers))


def kimi_k25_projector(config: ConfigReader, vision: ConfigReader, text_width: int) -> tuple[Weight, ...]:
    """Return the projector, which puts four patches together and brings them to the text's width."""
    config.ignore("media_placeholder_token_id", "projection_layer_norm_eps", "use_unified_vision_chunk",
                  "video_placeholder")  # fmt: skip
    merged = _merged_width(vision)
    normed = vision.size("mm_hidden_size", default=config.size("projection_hidden_size", default=DEFAULT_WIDTH))
    return vision_weights(
        (
            *norm("mm_projector.pre_norm", normed),
            *linear("mm_projector.proj.0", merged, merged),
            *linear("mm_projector.proj.2", text_width, merged),
        )
    )


def kimi_vl_projector(config: ConfigReader, vision: ConfigReader, text_width: int) -> tuple[Weight, ...]:
    """Return Kimi-VL's projector, of the same shapes as K2.5's.

    Source: KimiVLMultiModalProjector in vllm/model_executor/models/kimi_vl.py.
    """
    config.ignore("media_placeholder_token_id")
    merged = _merged_width(vision)
    return vision_weights(
        (
            *norm("multi_modal_projector.pre_norm", _width(vision)),
            *linear("multi_modal_projector.linear_1", merged, merged),
            *linear("multi_modal_projector.linear_2", text_width, merged),
        )
    )


def _merged_width(vision: ConfigReader) -> int:
    if (vision.whole_numbers("merge_kernel_size") or (2, 2)) != (2, 2):
        raise vision.error("merge_kernel_size", "Only squares of two by two patches can be described.")
    return MERGED_PATCHES * _width(vision)


def _width(config: ConfigReader) -> int:
    return config.size(config.named("vt_hidden_size", "hidden_size"), default=DEFAULT_WIDTH)


FAMILIES: Mapping[str, Family] = {
    "kimi_k25": Family(
        reader=Wrapper(
            text_type="deepseek_v3", fixed_tower=kimi_k25_tower, tied_by_default=False, projector=kimi_k25_projector
        ),
        needs_remote_code=True,
    ),
    "kimi_vl": Family(
        reader=Wrapper(
            text_type="deepseek_v3", fixed_tower=kimi_k25_tower, tied_by_default=False, projector=kimi_vl_projector
        ),
        needs_remote_code=True,
    ),
}
