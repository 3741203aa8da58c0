"""LLaVA and LLaVA-NeXT: a CLIP tower and two matrices before a text model of any family.

Source: `transformers` 5.23, modeling_llava and _llava_next and their config classes.
"""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.family import Family
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.multimodal import Wrapper
from plimsoll.planners.families.reading.vision import feature_layers, linear, tower_width, vision_weights

# The tower of a config without `vision_config`, in LlavaConfig.
CLIP_LARGE = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "patch_size": 14, "image_size": 336,
}  # fmt: skip


def two_layer_projector(config: ConfigReader, vision: ConfigReader, text_width: int) -> tuple[Weight, ...]:
    """Return LLaVA's projector, which reads the features of one or several layers of the tower."""
    bias = config.flag("multimodal_projector_bias", default=True)
    width = tower_width(vision) * feature_layers(config)
    return vision_weights(
        (
            *linear("multi_modal_projector.linear_1", text_width, width, bias=bias),
            *linear("multi_modal_projector.linear_2", text_width, text_width, bias=bias),
        )
    )


def newline_projector(config: ConfigReader, vision: ConfigReader, text_width: int) -> tuple[Weight, ...]:
    """Return LLaVA-NeXT's projector and the token it puts after each row of an image."""
    newline = vision_weights([("image_newline", (text_width,))])
    return (*two_layer_projector(config, vision, text_width), *newline)


FAMILIES: Mapping[str, Family] = {
    "llava": Family(reader=Wrapper(text_type="llama", projector=two_layer_projector, absent_tower=CLIP_LARGE)),
    "llava_next": Family(reader=Wrapper(text_type="llama", projector=newline_projector, absent_tower=CLIP_LARGE)),
}
