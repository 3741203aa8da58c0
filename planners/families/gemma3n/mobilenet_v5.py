"""The weights of MobileNet-V5's encoder of 300 million parameters, Gemma 3n's eyes.

Its sizes are written in no config: timm builds them from the architecture's
name. Source: pytorch-image-models 1.0.31, timm/models/mobilenetv5.py,
`_gen_mobilenet_v5`, and _efficientnet_blocks.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plimsoll.planners.families.reading.vision import Shape

ARCHITECTURE = "mobilenetv5_300m_enc"
OUTPUT_WIDTH = 2048
COLOURS = 3
STEM_WIDTH = 64
STEM_KERNEL = 3
EDGE_KERNEL = 3
EDGE_EXPANSION = 4
# The fusion adapter reads the last two stages and widens them twice.
FUSION_EXPANSION = 2
# Keys and values of the third stage are made of every second position.
DOWNSAMPLING_KERNEL = 3

Shapes = Iterator[tuple[str, Shape]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edge:
    """A full convolution that widens, and one of single pixels that narrows to `width`."""

    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inverted:
    """A universal inverted bottleneck: depthwise kernels (0: none) before and after widening by `expansion`."""

    width: int
    first_kernel: int = 0
    middle_kernel: int = 0
    expansion: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attention:
    """Attention of many queries to one key and value, which may be made of fewer positions."""

    width: int
    heads: int
    head_width: int
    downsamples: bool


_Layer = _Edge | _Inverted | _Attention


def _attending(width: int, heads: int, head_width: int, pairs: int, *, downsamples: bool) -> tuple[_Layer, ...]:
    """Return `pairs` of attention and a narrow bottleneck."""
    attention = _Attention(width=width, heads=heads, head_width=head_width, downsamples=downsamples)
    return (attention, _Inverted(width=width, expansion=2)) * pairs


STAGES: tuple[tuple[_Layer, ...], ...] = (
    (_Edge(width=128),) * 3,
    (
        _Inverted(width=256, first_kernel=3, middle_kernel=5, expansion=6),
        *(_Inverted(width=256, first_kernel=kernel, expansion=4) for kernel in (5, 3, 5, 3)),
    ),
    (
        _Inverted(width=640, first_kernel=5, middle_kernel=5, expansion=6),
        *(_Inverted(width=640, first_kernel=5, expansion=4),) * 7,
        _Inverted(width=640, expansion=1),
        *_attending(640, 12, 64, 14, downsamples=True),
    ),
    (
        _Inverted(width=1280, first_kernel=5, middle_kernel=5, expansion=6),
        *_attending(1280, 16, 96, 19, downsamples=False),
    ),
)


def mobilenet_v5_shapes(prefix: str) -> Shapes:
    """Yield every tensor of the encoder, its stem, four stages and the adapter that fuses the last two."""
    yield f"{prefix}.conv_stem.conv.weight", (STEM_WIDTH, COLOURS, STEM_KERNEL, STEM_KERNEL)
    yield f"{prefix}.conv_stem.conv.bias", (STEM_WIDTH,)
    yield f"{prefix}.conv_stem.bn.weight", (STEM_WIDTH,)
    width = STEM_WIDTH
    for stage, layers in enumerate(STAGES):
        for index, layer in enumerate(layers):
            yield from _layer(f"{prefix}.blocks.{stage}.{index}", layer, width)
            width = layer.width
    fused = sum(layers[-1].width for layers in STAGES[-2:])
    yield from _pointwise(f"{prefix}.msfa.ffn.pw_exp", FUSION_EXPANSION * fused, fused)
    yield from _pointwise(f"{prefix}.msfa.ffn.pw_proj", OUTPUT_WIDTH, FUSION_EXPANSION * fused)
    yield f"{prefix}.msfa.norm.weight", (OUTPUT_WIDTH,)


def _layer(prefix: str, layer: _Layer, inputs: int) -> Shapes:
    if isinstance(layer, _Edge):
        inner = EDGE_EXPANSION * inputs
        yield f"{prefix}.conv_exp.weight", (inner, inputs, EDGE_KERNEL, EDGE_KERNEL)
        yield f"{prefix}.bn1.weight", (inner,)
        yield f"{prefix}.conv_pwl.weight", (layer.width, inner, 1, 1)
        yield f"{prefix}.bn2.weight", (layer.width,)
        return
    yield from _inverted(prefix, layer, inputs) if isinstance(layer, _Inverted) else _attention(prefix, layer)
    yield f"{prefix}.layer_scale.gamma", (layer.width,)


def _inverted(prefix: str, layer: _Inverted, inputs: int) -> Shapes:
    inner = layer.expansion * inputs
    if layer.first_kernel:
        yield from _depthwise(f"{prefix}.dw_start", inputs, layer.first_kernel)
    yield from _pointwise(f"{prefix}.pw_exp", inner, inputs)
    if layer.middle_kernel:
        yield from _depthwise(f"{prefix}.dw_mid", inner, layer.middle_kernel)
    yield from _pointwise(f"{prefix}.pw_proj", layer.width, inner)


def _attention(prefix: str, layer: _Attention) -> Shapes:
    width, queries = layer.width, layer.heads * layer.head_width
    yield f"{prefix}.norm.weight", (width,)
    yield f"{prefix}.attn.query.proj.weight", (queries, width, 1, 1)
    for name in ("key", "value"):
        if layer.downsamples:
            yield f"{prefix}.attn.{name}.down_conv.weight", (width, 1, DOWNSAMPLING_KERNEL, DOWNSAMPLING_KERNEL)
            yield f"{prefix}.attn.{name}.norm.weight", (width,)
        yield f"{prefix}.attn.{name}.proj.weight", (layer.head_width, width, 1, 1)
    yield f"{prefix}.attn.output.proj.weight", (width, queries, 1, 1)


def _depthwise(prefix: str, width: int, kernel: int) -> Shapes:
    yield f"{prefix}.conv.weight", (width, 1, kernel, kernel)
    yield f"{prefix}.bn.weight", (width,)


def _pointwise(prefix: str, outputs: int, inputs: int) -> Shapes:
    yield f"{prefix}.conv.weight", (outputs, inputs, 1, 1)
    yield f"{prefix}.bn.weight", (outputs,)
