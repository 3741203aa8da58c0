"""Gemma 3n's eyes and ears, and the embedders that bring what they see and hear to the text's width.

Source: `transformers` 5.23, modeling_gemma3n; its config classes' defaults.
"""

from __future__ import annotations

from functools import cache

from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.gemma3n.mobilenet_v5 import ARCHITECTURE, OUTPUT_WIDTH, mobilenet_v5_shapes
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.vision import Shape, linear, norm, vision_weights

TOWER = "model.vision_tower.timm_model"
EARS = "model.audio_tower"
WRAPPER_COSMETIC = (
    "audio_soft_tokens_per_image", "boa_token_id", "boi_token_id", "eoa_token_id", "eoi_token_id",
    "vision_soft_tokens_per_image",
)  # fmt: skip
VISION_COSMETIC = ("do_pooling", "label_names", "num_classes", "vocab_offset")
AUDIO_COSMETIC = (
    "conf_attention_chunk_size", "conf_attention_context_left", "conf_attention_context_right",
    "conf_attention_logit_cap", "conf_reduction_factor", "conf_residual_weight", "gradient_clipping",
    "sscp_conv_eps", "sscp_conv_group_norm_eps", "vocab_offset",
)  # fmt: skip
# Gemma3nVisionConfig and Gemma3nAudioConfig.
DEFAULT_HARD_TOKENS = 128
DEFAULT_EARS_WIDTH = 1536
DEFAULT_SOUND_FEATURES = 128
DEFAULT_CHANNELS = (128, 32)
DEFAULT_KERNELS = ((3, 3), (3, 3))
DEFAULT_STRIDES = ((2, 2), (2, 2))
# Gemma3nAudioSubSampleConvProjection pads one frequency on either side.
FREQUENCY_PADDING = 2
INNER_EXPANSION = 4


def gemma3n_tower(config: ConfigReader) -> tuple[Weight, ...]:
    """Return the encoder that timm builds by name; another architecture, or changes to it, are refused."""
    config.must_be("architecture", ARCHITECTURE)
    config.must_be("hidden_size", OUTPUT_WIDTH)
    if config.section("model_args").unread_keys():
        raise config.error("model_args", "Changes to the encoder's architecture cannot be described.")
    config.ignore(*VISION_COSMETIC)
    return _eyes()


@cache
def _eyes() -> tuple[Weight, ...]:
    return vision_weights(mobilenet_v5_shapes(TOWER))


def gemma3n_projector(config: ConfigReader, vision: ConfigReader, text_width: int) -> tuple[Weight, ...]:
    """Return both embedders, and the ears."""
    config.ignore(*WRAPPER_COSMETIC)
    audio = config.section("audio_config")
    audio.ignore(*AUDIO_COSMETIC)
    width = audio.size("hidden_size", default=DEFAULT_EARS_WIDTH)
    heads = audio.size("conf_num_attention_heads", default=8)
    audio.must_divide("conf_num_attention_heads", heads, "hidden_size", width)
    kernel = audio.size("conf_conv_kernel_size", default=5)
    shapes = _subsampling(audio, width)
    for index in range(audio.size("conf_num_hidden_layers", default=12, most=MOST_LAYERS)):
        shapes.extend(_conformer(f"{EARS}.conformer.{index}", width, width // heads, kernel))
    shapes.extend(_embedder("model.embed_vision", vision, OUTPUT_WIDTH, text_width))
    shapes.extend(_embedder("model.embed_audio", audio, width, text_width))
    return vision_weights(shapes)


def _embedder(prefix: str, config: ConfigReader, width: int, text_width: int) -> list[tuple[str, Shape]]:
    """Return a table of the tokens that stand for no text, two norms and the matrix to the text's width."""
    return [
        (f"{prefix}.embedding.weight", (config.size("vocab_size", default=DEFAULT_HARD_TOKENS), width)),
        *norm(f"{prefix}.hard_embedding_norm", width, bias=False),
        *norm(f"{prefix}.soft_embedding_norm", width, bias=False),
        *linear(f"{prefix}.embedding_projection", text_width, width, bias=False),
    ]


def _subsampling(audio: ConfigReader, width: int) -> list[tuple[str, Shape]]:
    """Return two convolutions over time and frequency, and the matrix that reads all that is left of a moment."""
    prefix = f"{EARS}.subsample_conv_projection"
    channels = audio.whole_numbers("sscp_conv_channel_size") or DEFAULT_CHANNELS
    kernels = _pairs(audio, "sscp_conv_kernel_size", DEFAULT_KERNELS)
    strides = _pairs(audio, "sscp_conv_stride_size", DEFAULT_STRIDES)
    if len(channels) != len(DEFAULT_CHANNELS) or not all(channels):
        raise audio.error("sscp_conv_channel_size", "'sscp_conv_channel_size' must be two widths.")
    frequencies, inputs = audio.size("input_feat_size", default=DEFAULT_SOUND_FEATURES), 1
    shapes: list[tuple[str, Shape]] = []
    for index, (outputs, kernel, stride) in enumerate(zip(channels, kernels, strides, strict=True)):
        shapes.append((f"{prefix}.conv_{index}.conv.weight", (outputs, inputs, *kernel)))
        shapes.extend(norm(f"{prefix}.conv_{index}.norm", outputs, bias=False))
        frequencies, inputs = (frequencies + FREQUENCY_PADDING - kernel[1]) // stride[1] + 1, outputs
    if frequencies < 1:
        raise audio.error("input_feat_size", "Nothing is left of so few features after the convolutions.")
    shapes.extend(linear(f"{prefix}.input_proj_linear", width, inputs * frequencies, bias=False))
    return shapes


def _pairs(audio: ConfigReader, key: str, default: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Return a size over time and over frequency for each of the convolutions."""
    pairs = audio.items(key) or list(default)
    for pair in pairs:
        if not isinstance(pair, list | tuple) or [type(side) for side in pair] != [int, int] or min(pair) < 1:
            raise audio.error(key, f"'{key}' must be pairs of sizes.")
    if len(pairs) != len(default):
        raise audio.error(key, f"'{key}' must be {len(default)} pairs of sizes.")
    return [(time, frequency) for time, frequency in pairs]


def _conformer(prefix: str, width: int, head_width: int, kernel: int) -> list[tuple[str, Shape]]:
    """Return one block: half a feed-forward, attention, a depthwise convolution, the other half."""
    attention, convolution = f"{prefix}.attention", f"{prefix}.lconv1d"
    shapes: list[tuple[str, Shape]] = [(f"{attention}.attn.per_dim_scale", (head_width,))]
    for half in ("ffw_layer_start", "ffw_layer_end"):
        shapes.extend(linear(f"{prefix}.{half}.ffw_layer_1", INNER_EXPANSION * width, width, bias=False))
        shapes.extend(linear(f"{prefix}.{half}.ffw_layer_2", width, INNER_EXPANSION * width, bias=False))
        shapes.extend(norm(f"{prefix}.{half}.pre_layer_norm", width, bias=False))
        shapes.extend(norm(f"{prefix}.{half}.post_layer_norm", width, bias=False))
    for name in ("relative_position_embedding.pos_proj", "q_proj", "k_proj", "v_proj"):
        shapes.extend(linear(f"{attention}.attn.{name}", width, width, bias=False))
    shapes.extend(linear(f"{attention}.post", width, width, bias=False))
    shapes.extend(linear(f"{convolution}.linear_start", 2 * width, width, bias=False))
    shapes.append((f"{convolution}.depthwise_conv1d.weight", (width, 1, kernel)))
    shapes.extend(linear(f"{convolution}.linear_end", width, width, bias=False))
    for name in ("attention.pre_attn_norm", "attention.post_norm", "lconv1d.pre_layer_norm", "lconv1d.conv_norm"):
        shapes.extend(norm(f"{prefix}.{name}", width, bias=False))
    shapes.extend(norm(f"{prefix}.norm", width, bias=False))
    return shapes
