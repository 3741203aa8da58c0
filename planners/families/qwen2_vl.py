"""Qwen2-VL and Qwen2.5-VL: Qwen2, and towers that end in a merger to its width.

Source: `transformers` 5.23, modeling_qwen2_vl and _qwen2_5_vl and their config classes.
"""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.family import Family
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.dense import ALWAYS, NEVER, DenseDecoder
from plimsoll.planners.families.reading.multimodal import Wrapper
from plimsoll.planners.families.reading.vision import VISION_COSMETIC, Shape, linear, norm, vision_weights
from plimsoll.planners.families.reading.windows import Windows

QWEN_COSMETIC = (
    "fullatt_block_indexes", "in_chans", "num_heads", "spatial_patch_size", "tokens_per_second", "window_size",
)  # fmt: skip


def qwen2_tower(config: ConfigReader) -> tuple[Weight, ...]:
    """Return the tower of Qwen2-VL, its merger to the text's width included. Source: modeling_qwen2_vl."""
    config.ignore(*VISION_COSMETIC, *QWEN_COSMETIC)
    width = config.size("embed_dim", default=1280)
    inner = width * config.size("mlp_ratio", default=4)
    shapes: list[tuple[str, Shape]] = []
    for layer in range(config.size("depth", default=32, most=MOST_LAYERS)):
        prefix = f"visual.blocks.{layer}"
        shapes.extend(_qwen_attention(prefix, width))
        shapes.extend(linear(f"{prefix}.mlp.fc1", inner, width))
        shapes.extend(linear(f"{prefix}.mlp.fc2", width, inner))
        shapes.extend(norm(f"{prefix}.norm1", width))
        shapes.extend(norm(f"{prefix}.norm2", width))
    shapes.extend(_qwen_ends(config, width, config.size("hidden_size", default=3584), norm_bias=True))
    return vision_weights(shapes)


def qwen2_5_tower(config: ConfigReader) -> tuple[Weight, ...]:
    """Return the tower of Qwen2.5-VL, its merger to the text's width included. Source: modeling_qwen2_5_vl."""
    config.ignore(*VISION_COSMETIC, *QWEN_COSMETIC)
    width = config.size("hidden_size", default=3584)
    inner = config.size("intermediate_size", default=3420)
    shapes: list[tuple[str, Shape]] = []
    for layer in range(config.size("depth", default=32, most=MOST_LAYERS)):
        prefix = f"visual.blocks.{layer}"
        shapes.extend(_qwen_attention(prefix, width))
        shapes.extend(linear(f"{prefix}.mlp.gate_proj", inner, width))
        shapes.extend(linear(f"{prefix}.mlp.up_proj", inner, width))
        shapes.extend(linear(f"{prefix}.mlp.down_proj", width, inner))
        shapes.extend(norm(f"{prefix}.norm1", width, bias=False))
        shapes.extend(norm(f"{prefix}.norm2", width, bias=False))
    shapes.extend(_qwen_ends(config, width, config.size("out_hidden_size", default=3584), norm_bias=False))
    return vision_weights(shapes)


def _qwen_attention(prefix: str, width: int) -> tuple[tuple[str, Shape], ...]:
    return (*linear(f"{prefix}.attn.qkv", 3 * width, width), *linear(f"{prefix}.attn.proj", width, width))


def _qwen_ends(config: ConfigReader, width: int, text_width: int, *, norm_bias: bool) -> list[tuple[str, Shape]]:
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
    "vocab_size": 152_064,
    "hidden_size": 8192,
    "intermediate_size": 29_568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32_768,
    "max_window_layers": 80,
}
TEXT = Family(
    reader=DenseDecoder(
        qkv_bias=ALWAYS,
        output_bias=NEVER,
        feed_forward_bias=NEVER,
        key_value_heads_default=8,
        windows=Windows.FROM_MAX_WINDOW_LAYERS,
        window_default=4096,
    ),
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
