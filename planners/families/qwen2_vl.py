"""Qwen2-VL and Qwen2.5-VL: Qwen2, and towers that end in a merger to its width.

Source: `transformers` 5.23, modeling_qwen2_vl and _qwen2_5_vl and their config classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.dense_families import QWEN_2
from plimsoll.planners.families.family import Family
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.multimodal import Wrapper
from plimsoll.planners.families.reading.vision import VISION_COSMETIC, Shape, linear, norm, tower_layers, vision_weights

BLOCKS = "visual.blocks"
ATTENTION = ("attn.qkv", "attn.proj")
NORMS = ("norm1", "norm2")
QWEN_COSMETIC = (
    "fullatt_block_indexes", "in_chans", "num_heads", "spatial_patch_size", "tokens_per_second", "window_size",
)  # fmt: skip


def qwen2_tower(config: ConfigReader) -> tuple[Weight, ...]:
    """Return the tower of Qwen2-VL, its merger to the text's width included."""
    config.ignore(*VISION_COSMETIC, *QWEN_COSMETIC)
    width = config.size("embed_dim", default=1280)
    inner = width * config.size("mlp_ratio", default=4)
    layers = tower_layers(
        BLOCKS, _depth(config), width, inner, attention=ATTENTION, feed_forward=("mlp.fc1", "mlp.fc2"), norms=NORMS
    )
    ends = _ends(config, width, config.size("hidden_size", default=3584), norm_bias=True)
    return vision_weights((*layers, *ends))


def qwen2_5_tower(config: ConfigReader) -> tuple[Weight, ...]:
    """Return the tower of Qwen2.5-VL, its merger to the text's width included."""
    config.ignore(*VISION_COSMETIC, *QWEN_COSMETIC)
    width, inner = config.size("hidden_size", default=3584), config.size("intermediate_size", default=3420)
    gated = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    layers = tower_layers(
        BLOCKS, _depth(config), width, inner, attention=ATTENTION, feed_forward=gated, norms=NORMS, norm_bias=False
    )
    ends = _ends(config, width, config.size("out_hidden_size", default=3584), norm_bias=False)
    return vision_weights((*layers, *ends))


def _depth(config: ConfigReader) -> int:
    return config.size("depth", default=32, most=MOST_LAYERS)


def _ends(config: ConfigReader, width: int, text_width: int, *, norm_bias: bool) -> list[tuple[str, Shape]]:
    """Return the patch embedding and the merger of `spatial_merge_size` squared patches to one token."""
    patch = config.size("patch_size", default=14)
    frames = config.size("temporal_patch_size", default=2)
    channels = config.size("in_channels", default=3)
    merged = width * config.size("spatial_merge_size", default=2) ** 2
    return [
        ("visual.patch_embed.proj.weight", (width, channels, frames, patch, patch)),
        *norm("visual.merger.ln_q", width, bias=norm_bias),
        *linear("visual.merger.mlp.0", merged, merged),
        *linear("visual.merger.mlp.2", text_width, merged),
    ]


QWEN_2_VL_SIZES: Mapping[str, int] = {
    "vocab_size": 152_064, "hidden_size": 8192, "intermediate_size": 29_568, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 32_768, "max_window_layers": 80,
}  # fmt: skip
TEXT = Family(
    reader=replace(QWEN_2, key_value_heads_default=8),
    class_sizes=QWEN_2_VL_SIZES,
)

FAMILIES: Mapping[str, Family] = {
    "qwen2_vl_text": TEXT,
    "qwen2_5_vl_text": TEXT,
    "qwen2_vl": Family(reader=Wrapper(text_type="qwen2_vl_text", fixed_tower=qwen2_tower, prefix="", may_be_flat=True)),
    "qwen2_5_vl": Family(
        reader=Wrapper(text_type="qwen2_5_vl_text", fixed_tower=qwen2_5_tower, prefix="", may_be_flat=True)
    ),
}
