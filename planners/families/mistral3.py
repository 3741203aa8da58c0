"""Mistral 3: a Pixtral tower whose patches are merged four to one before a Mistral or Ministral.

Source: `transformers` 5.23, modeling_mistral3 and configuration_mistral3.
"""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.family import Family
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.multimodal import Wrapper
from plimsoll.planners.families.reading.vision import feature_layers, linear, norm, tower_width, vision_weights

# The tower of a config without `vision_config`.
PIXTRAL = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "patch_size": 14, "image_size": 1540,
}  # fmt: skip


def merging_projector(config: ConfigReader, vision: ConfigReader, text_width: int) -> tuple[Weight, ...]:
    """Return Mistral 3's projector, which merges a square of patches before it projects."""
    bias = config.flag("multimodal_projector_bias", default=False)
    width = tower_width(vision)
    merged = width * config.size("spatial_merge_size", default=2) ** 2
    return vision_weights(
        (
            *norm("multi_modal_projector.norm", width, bias=False),
            *linear("multi_modal_projector.patch_merger.merging_layer", width, merged, bias=False),
            *linear("multi_modal_projector.linear_1", text_width, width * feature_layers(config), bias=bias),
            *linear("multi_modal_projector.linear_2", text_width, text_width, bias=bias),
        )
    )


FAMILIES: Mapping[str, Family] = {
    "mistral3": Family(
        reader=Wrapper(text_type="mistral", tower="pixtral", projector=merging_projector, absent_tower=PIXTRAL)
    ),
}
