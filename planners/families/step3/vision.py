"""The weights of Step 3.7's vision tower and its projector."""

from __future__ import annotations

from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.vision import VISION_COSMETIC, Matrix, Shape, linear, norm, vision_weights

TOWER = "vision_model"
COSMETIC = (
    "heads", "intermediate_size", "layer_scale_init_value", "ls_init_value", "max_position_embeddings",
    "num_attention_heads", "output_dim", "pool_type", "use_abs_posemb", "use_cls_token", "use_ln_post", "use_ln_pre",
    "use_rope2d", "ues_cls_token",
)  # fmt: skip
# Defaults of transformers' Step3p7VisionConfig.
DEFAULT_WIDTH = 1536
DEFAULT_INNER_RATIO = 8960 / 1536
KERNEL = 3
# Two convolutions of stride two follow the tower; each doubles the width.
DOWNSAMPLERS = 2


def step3_tower(config: ConfigReader) -> tuple[Weight, ...]:
    """Return the tower. Source: `transformers` 5.23, modeling_step3p7 and conversion_mapping."""
    config.ignore(*VISION_COSMETIC, *COSMETIC)
    width, patch = _width(config), config.size("patch_size", default=14)
    positions = (config.size("image_size", default=728) // patch) ** 2
    shapes: list[tuple[str, Shape]] = [
        (f"{TOWER}.conv1.weight", (width, config.size("num_channels", default=3), patch, patch)),
        (f"{TOWER}.positional_embedding", (positions, width)),
        *norm(f"{TOWER}.ln_pre", width),
    ]
    for index in range(config.size(config.named("num_hidden_layers", "layers"), default=47, most=MOST_LAYERS)):
        shapes.extend(_layer(f"{TOWER}.transformer.resblocks.{index}", width, _inner_width(config, width)))
    for index in range(DOWNSAMPLERS):
        name, inputs = f"{TOWER}.vit_downsampler{index + 1}", width * 2**index
        shapes.append((f"{name}.weight", (2 * inputs, inputs, KERNEL, KERNEL)))
        shapes.append((f"{name}.bias", (2 * inputs,)))
    return vision_weights(shapes)


def step3_projector(config: ConfigReader, vision: ConfigReader, text_width: int) -> tuple[Weight, ...]:
    """Return the matrix from the downsampled patches to the text model."""
    config.ignore("im_end_token", "im_patch_token", "im_start_token", "understand_projector_stride",
                  "use_im_start_end", "vision_select_layer")  # fmt: skip
    width = _width(vision) * 2**DOWNSAMPLERS
    bias = config.flag("projector_bias", default=False)
    return vision_weights(linear("vit_large_projector", text_width, width, bias=bias))


def _width(config: ConfigReader) -> int:
    return config.size(config.named("hidden_size", "width"), default=DEFAULT_WIDTH)


def _inner_width(config: ConfigReader, width: int) -> int:
    ratio = config.positive_number("mlp_ratio", default=DEFAULT_INNER_RATIO)
    return int(width * ratio)


def _layer(prefix: str, width: int, inner: int) -> list[tuple[str, Shape]]:
    return [
        # Queries, keys and values in one tensor; read, they are three linear layers.
        Matrix(f"{prefix}.attn.in_proj_weight", (3 * width, width)),
        (f"{prefix}.attn.in_proj_bias", (3 * width,)),
        *linear(f"{prefix}.attn.out_proj", width, width),
        *norm(f"{prefix}.ln_1", width),
        *norm(f"{prefix}.ln_2", width),
        *linear(f"{prefix}.mlp.c_fc", inner, width),
        *linear(f"{prefix}.mlp.c_proj", width, inner),
        (f"{prefix}.ls_1.gamma", (width,)),
        (f"{prefix}.ls_2.gamma", (width,)),
    ]
