"""Qwen3-VL and its mixtures; their vision tower, which Qwen3.5 has too, mergers to the text's width included."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.architecture.mixture_of_experts import FusedExperts
from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.family import Family
from plimsoll.planners.families.reading.attention import QueryKeyNorm
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.dense import NEVER, Bias, DenseDecoder
from plimsoll.planners.families.reading.experts import MixtureNames, Sized
from plimsoll.planners.families.reading.layer_kinds import DenseLayers
from plimsoll.planners.families.reading.mixtures import MixtureDecoder
from plimsoll.planners.families.reading.multimodal import Wrapper
from plimsoll.planners.families.reading.vision import (
    VISION_COSMETIC,
    Shape,
    Tower,
    linear,
    norm,
    tower_layers,
    vision_weights,
)

TOWER = "model.visual"
# Defaults of transformers' Qwen3VLVisionConfig and Qwen3_5VisionConfig, which agree on them.
DEFAULT_DEPTH = 27
DEFAULT_WIDTH = 1152
DEFAULT_INNER_WIDTH = 4304
DEFAULT_TEXT_WIDTH = 3584
DEFAULT_POSITIONS = 2304
DEFAULT_PATCH = 16
DEFAULT_FRAMES = 2
DEFAULT_CHANNELS = 3
DEFAULT_MERGE = 2
# Layers after which Qwen3-VL hands features to the text model's first layers (DeepStack, arXiv:2406.04334).
DEFAULT_DEEPSTACK_MERGERS = 3


def qwen3_vl_tower(config: ConfigReader) -> tuple[Weight, ...]:
    """Return the tower of Qwen3-VL, with a merger for each of its `deepstack_visual_indexes`.

    Source: `transformers` 5.23, modeling_qwen3_vl.
    """
    left_out = config.is_left_out("deepstack_visual_indexes")
    indexes = config.items("deepstack_visual_indexes")
    return _tower(config, mergers=DEFAULT_DEEPSTACK_MERGERS if left_out else len(indexes or []))


def qwen3_5_tower(config: ConfigReader) -> tuple[Weight, ...]:
    """Return the tower of Qwen3.5, which hands features on only at its end.

    Source: `transformers` 5.23, modeling_qwen3_5.
    """
    if config.items("deepstack_visual_indexes"):
        raise config.error("deepstack_visual_indexes", "Qwen3.5 has no deepstack mergers; the list must be empty.")
    return _tower(config, mergers=0)


def _tower(config: ConfigReader, *, mergers: int) -> tuple[Weight, ...]:
    config.ignore(*VISION_COSMETIC, "num_heads")
    width = config.size("hidden_size", default=DEFAULT_WIDTH)
    inner = config.size("intermediate_size", default=DEFAULT_INNER_WIDTH)
    text_width = config.size("out_hidden_size", default=DEFAULT_TEXT_WIDTH)
    merged = width * config.size("spatial_merge_size", default=DEFAULT_MERGE) ** 2
    patch = config.size("patch_size", default=DEFAULT_PATCH)
    frames = config.size("temporal_patch_size", default=DEFAULT_FRAMES)
    channels = config.size("in_channels", default=DEFAULT_CHANNELS)
    positions = config.size("num_position_embeddings", default=DEFAULT_POSITIONS)
    shapes: list[tuple[str, Shape]] = [
        (f"{TOWER}.patch_embed.proj.weight", (width, channels, frames, patch, patch)),
        (f"{TOWER}.patch_embed.proj.bias", (width,)),
        (f"{TOWER}.pos_embed.weight", (positions, width)),
    ]
    depth = config.size("depth", default=DEFAULT_DEPTH, most=MOST_LAYERS)
    shapes.extend(
        tower_layers(
            f"{TOWER}.blocks",
            depth,
            width,
            inner,
            attention=("attn.qkv", "attn.proj"),
            feed_forward=("mlp.linear_fc1", "mlp.linear_fc2"),
            norms=("norm1", "norm2"),
        )
    )
    shapes.extend(_merger(f"{TOWER}.merger", width, merged, text_width))
    for index in range(mergers):
        # These norm after they put the patches together, the last merger before.
        shapes.extend(_merger(f"{TOWER}.deepstack_merger_list.{index}", merged, merged, text_width))
    return vision_weights(shapes)


def _merger(prefix: str, normed_width: int, merged: int, text_width: int) -> tuple[tuple[str, Shape], ...]:
    return (
        *norm(f"{prefix}.norm", normed_width),
        *linear(f"{prefix}.linear_fc1", merged, merged),
        *linear(f"{prefix}.linear_fc2", text_width, merged),
    )


ATTENTION_BIAS = Bias(key="attention_bias")


def qwen3_wrapper(text_type: str, tower: Tower) -> Wrapper:
    """Return what Qwen3-VL and Qwen3.5 put around their text models."""
    return Wrapper(
        text_type=text_type,
        fixed_tower=tower,
        tied_by_default=False,
        prefix="",
        text_module="model.language_model.",
    )


FAMILIES: Mapping[str, Family] = {
    "qwen3_vl_text": Family(
        reader=DenseDecoder(
            feed_forward_bias=NEVER,
            query_key_norm=QueryKeyNorm.HEAD,
            head_dim_default=128,
            key_value_heads_default=32,
        ),
    ),
    "qwen3_vl_moe_text": Family(
        reader=MixtureDecoder(
            experts=Sized("num_experts", 60),
            experts_per_token=Sized("num_experts_per_tok", 4),
            expert_width=Sized("moe_intermediate_size", 1408),
            # Its published checkpoints hold what transformers 4.57 held in memory; transformers 5 turns it on reading.
            names=MixtureNames(fused=FusedExperts.INPUT_FIRST),
            dense_layers=DenseLayers.BETWEEN_STEPS,
            qkv_bias=ATTENTION_BIAS,
            output_bias=ATTENTION_BIAS,
            query_key_norm=QueryKeyNorm.HEAD,
            key_value_heads_default=16,
        ),
        has_experts=True,
    ),
    "qwen3_vl": Family(reader=qwen3_wrapper("qwen3_vl_text", qwen3_vl_tower)),
    "qwen3_vl_moe": Family(reader=qwen3_wrapper("qwen3_vl_moe_text", qwen3_vl_tower)),
}
