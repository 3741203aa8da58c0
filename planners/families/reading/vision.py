"""The weights of vision towers: counted exactly, never split, their work on images not counted.

Each function returns every tensor of a tower under the names in which
multimodal checkpoints hold it. Source: `transformers` 5.23, the file that each
function names; defaults are the config classes' own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from plimsoll.planners.architecture.weight import Part, Weight
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader

Shape = tuple[int, ...]
Tower = Callable[[ConfigReader], tuple[Weight, ...]]

VISION_COSMETIC = (
    "attention_dropout", "dropout", "hidden_act", "initializer_factor", "layer_norm_eps", "projection_dim",
    "projector_hidden_act", "rope_parameters", "rope_theta", "use_bfloat16", "vocab_size", "head_dim",
)  # fmt: skip


# Queries, keys and values are as wide as the tower, each.
QUERY_KEY_VALUE = 3


class Matrix(NamedTuple):
    """The name and shape of a linear layer's matrix, which quantizers address; other tensors are plain pairs."""

    name: str
    shape: Shape


def vision_weights(shapes: Iterable[tuple[str, Shape]]) -> tuple[Weight, ...]:
    """Return weights that stand whole on every rank."""
    return tuple(
        Weight(name=entry[0], shape=entry[1], part=Part.VISION, is_linear=isinstance(entry, Matrix)) for entry in shapes
    )


def linear(name: str, outputs: int, inputs: int, *, bias: bool = True) -> tuple[tuple[str, Shape], ...]:
    """Return the name and shape of a matrix and its bias."""
    matrix = Matrix(f"{name}.weight", (outputs, inputs))
    return (matrix, (f"{name}.bias", (outputs,))) if bias else (matrix,)


def norm(name: str, width: int, *, bias: bool = True) -> tuple[tuple[str, Shape], ...]:
    """Return the name and shape of a norm's scale and bias."""
    scale = (f"{name}.weight", (width,))
    return (scale, (f"{name}.bias", (width,))) if bias else (scale,)


def tower_layers(
    prefix: str,
    number: int,
    width: int,
    inner: int,
    *,
    attention: tuple[str, ...],
    feed_forward: tuple[str, ...],
    norms: tuple[str, str],
    attention_bias: bool = True,
    bias: bool = True,
    norm_bias: bool = True,
) -> Iterator[tuple[str, Shape]]:
    """Yield the weights of a tower's layers: attention, a feed-forward, two norms.

    `attention` names queries, keys, values and output, or one matrix of all three and the output; `feed_forward` what
    goes to `inner` features, one matrix or a gate and its other half, and the way back.
    """
    *entries, output = attention
    *firsts, last = feed_forward
    for index in range(number):
        layer = f"{prefix}.{index}"
        for name in entries:
            yield from linear(f"{layer}.{name}", width * QUERY_KEY_VALUE // len(entries), width, bias=attention_bias)
        yield from linear(f"{layer}.{output}", width, width, bias=attention_bias)
        for name in firsts:
            yield from linear(f"{layer}.{name}", inner, width, bias=bias)
        yield from linear(f"{layer}.{last}", width, inner, bias=bias)
        for name in norms:
            yield from norm(f"{layer}.{name}", width, bias=norm_bias)


def clip_layers(prefix: str, number: int, width: int, inner: int) -> Iterator[tuple[str, Shape]]:
    """Yield the weights of CLIP's and SigLIP's layers."""
    return tower_layers(
        prefix,
        number,
        width,
        inner,
        attention=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj"),
        feed_forward=("mlp.fc1", "mlp.fc2"),
        norms=("layer_norm1", "layer_norm2"),
    )


def siglip_tower(config: ConfigReader) -> tuple[Weight, ...]:
    """Return a SigLIP tower. Source: modeling_siglip."""
    prefix = "vision_tower.vision_model"
    config.ignore(*VISION_COSMETIC)
    width = config.size("hidden_size", default=768)
    inner = config.size("intermediate_size", default=3072)
    layers = config.size("num_hidden_layers", default=12, most=MOST_LAYERS)
    config.ignore("num_attention_heads")
    patch, channels = config.size("patch_size", default=16), config.size("num_channels", default=3)
    positions = (config.size("image_size", default=224) // patch) ** 2
    head = f"{prefix}.head"
    return vision_weights(
        (
            (f"{prefix}.embeddings.patch_embedding.weight", (width, channels, patch, patch)),
            (f"{prefix}.embeddings.patch_embedding.bias", (width,)),
            (f"{prefix}.embeddings.position_embedding.weight", (positions, width)),
            *clip_layers(f"{prefix}.encoder.layers", layers, width, inner),
            *norm(f"{prefix}.post_layernorm", width),
            *(
                (
                    (f"{head}.probe", (1, 1, width)),
                    (f"{head}.attention.in_proj_weight", (3 * width, width)),
                    (f"{head}.attention.in_proj_bias", (3 * width,)),
                    # torch.nn.MultiheadAttention's own matrix, which quantizers leave alone.
                    (f"{head}.attention.out_proj.weight", (width, width)),
                    (f"{head}.attention.out_proj.bias", (width,)),
                    *norm(f"{head}.layernorm", width),
                    *linear(f"{head}.mlp.fc1", inner, width),
                    *linear(f"{head}.mlp.fc2", width, inner),
                )
                if config.flag("vision_use_head", default=True)
                else ()
            ),
        )
    )


def clip_tower(config: ConfigReader) -> tuple[Weight, ...]:
    """Return a CLIP tower. Source: modeling_clip."""
    prefix = "vision_tower.vision_model"
    config.ignore(*VISION_COSMETIC)
    width = config.size("hidden_size", default=768)
    inner = config.size("intermediate_size", default=3072)
    layers = config.size("num_hidden_layers", default=12, most=MOST_LAYERS)
    config.ignore("num_attention_heads")
    patch, channels = config.size("patch_size", default=32), config.size("num_channels", default=3)
    positions = (config.size("image_size", default=224) // patch) ** 2 + 1
    return vision_weights(
        (
            (f"{prefix}.embeddings.class_embedding", (width,)),
            (f"{prefix}.embeddings.patch_embedding.weight", (width, channels, patch, patch)),
            (f"{prefix}.embeddings.position_embedding.weight", (positions, width)),
            *norm(f"{prefix}.pre_layrnorm", width),
            *clip_layers(f"{prefix}.encoder.layers", layers, width, inner),
            *norm(f"{prefix}.post_layernorm", width),
        )
    )


def pixtral_tower(config: ConfigReader) -> tuple[Weight, ...]:
    """Return a Pixtral tower, which has no biases and rotary positions. Source: modeling_pixtral."""
    config.ignore(*VISION_COSMETIC, "image_size", "num_attention_heads")
    width = config.size("hidden_size", default=1024)
    inner = config.size("intermediate_size", default=4096)
    patch, channels = config.size("patch_size", default=16), config.size("num_channels", default=3)
    return vision_weights(
        (
            ("vision_tower.patch_conv.weight", (width, channels, patch, patch)),
            *norm("vision_tower.ln_pre", width, bias=False),
            *tower_layers(
                "vision_tower.transformer.layers",
                config.size("num_hidden_layers", default=24, most=MOST_LAYERS),
                width,
                inner,
                attention=("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj"),
                feed_forward=("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"),
                norms=("attention_norm", "ffn_norm"),
                attention_bias=False,
                bias=False,
                norm_bias=False,
            ),
        )
    )


TOWERS: Mapping[str, Tower] = {
    "clip_vision_model": clip_tower,
    "pixtral": pixtral_tower,
    "siglip_vision_model": siglip_tower,
}


def tower_width(vision: ConfigReader) -> int:
    """Return the features of a tower of `TOWERS`, whose config may leave them out."""
    default = 1024 if vision.text("model_type", default="") == "pixtral" else 768
    return vision.size("hidden_size", default=default)


def feature_layers(config: ConfigReader) -> int:
    """Return of how many of the tower's layers the projector reads the features."""
    if config.is_list("vision_feature_layer"):
        return len(config.items("vision_feature_layer") or [])
    config.ignore("vision_feature_layer")
    return 1
