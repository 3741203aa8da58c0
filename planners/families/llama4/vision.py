"""The weights of Llama 4's vision tower. Source: `transformers` 5.23, modeling_llama4; its config class's defaults."""

from __future__ import annotations

from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.vision import VISION_COSMETIC, Shape, linear, norm, tower_layers, vision_weights

DEFAULT_WIDTH = 768
DEFAULT_INNER_WIDTH = 5632
DEFAULT_LAYERS = 34
DEFAULT_HEADS = 16
DEFAULT_CHANNELS = 3
DEFAULT_IMAGE_SIDE = 448
DEFAULT_PATCH_SIDE = 14
DEFAULT_ADAPTER_WIDTH = 4096
DEFAULT_OUTPUT_WIDTH = 7680


def llama4_tower(config: ConfigReader) -> tuple[Weight, ...]:
    """Return the tower with its adapter, which reads four patches as one."""
    config.ignore(
        *VISION_COSMETIC, "multi_modal_projector_bias", "norm_eps", "pixel_shuffle_ratio",
        "projector_dropout", "vision_feature_layer", "vision_feature_select_strategy",
    )  # fmt: skip
    prefix = "vision_model"
    width = config.size("hidden_size", default=DEFAULT_WIDTH)
    heads = config.size("num_attention_heads", default=DEFAULT_HEADS)
    config.must_divide("num_attention_heads", heads, "hidden_size", width)
    inner = config.size("intermediate_size", default=DEFAULT_INNER_WIDTH)
    patch = config.size("patch_size", default=DEFAULT_PATCH_SIDE)
    channels = config.size("num_channels", default=DEFAULT_CHANNELS)
    # One position more for the class.
    positions = (config.size("image_size", default=DEFAULT_IMAGE_SIDE) // patch) ** 2 + 1
    adapter_input = config.size("projector_input_dim", default=DEFAULT_ADAPTER_WIDTH)
    adapter_output = config.size("projector_output_dim", default=DEFAULT_ADAPTER_WIDTH)
    shapes: list[tuple[str, Shape]] = [
        (f"{prefix}.class_embedding", (width,)),
        (f"{prefix}.positional_embedding_vlm", (positions, width)),
        *linear(f"{prefix}.patch_embedding.linear", width, channels * patch * patch, bias=False),
        *norm(f"{prefix}.layernorm_pre", width),
        *norm(f"{prefix}.layernorm_post", width),
        *linear(f"{prefix}.vision_adapter.mlp.fc1", adapter_input, inner, bias=False),
        *linear(f"{prefix}.vision_adapter.mlp.fc2", adapter_output, adapter_output, bias=False),
    ]
    number = config.size("num_hidden_layers", default=DEFAULT_LAYERS, most=MOST_LAYERS)
    shapes.extend(
        tower_layers(
            f"{prefix}.model.layers",
            number,
            width,
            inner,
            attention=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
            feed_forward=("mlp.fc1", "mlp.fc2"),
            norms=("input_layernorm", "post_attention_layernorm"),
        )
    )
    return vision_weights(shapes)


def llama4_projector(config: ConfigReader, vision: ConfigReader, text_width: int) -> tuple[Weight, ...]:  # noqa: ARG001
    """Return the matrix from the tower's width to the text's."""
    width = vision.size("vision_output_dim", default=DEFAULT_OUTPUT_WIDTH)
    return vision_weights(linear("multi_modal_projector.linear_1", text_width, width, bias=False))
