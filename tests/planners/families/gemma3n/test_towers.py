"""Gemma 3n's eyes, whose module is timm's, and what its ears and wrapper refuse."""

from __future__ import annotations

import math
from typing import Any

import pytest

from plimsoll.planners.architecture import Part
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.families.gemma3n.mobilenet_v5 import mobilenet_v5_shapes
from plimsoll.planners.ground.errors import InvalidModelConfig
from tests.planners.families.small_recent import GEMMA3N, GEMMA3N_EARS


def elements_under(prefix: str) -> int:
    shapes = dict(mobilenet_v5_shapes("eyes"))
    return sum(math.prod(shape) for name, shape in shapes.items() if name.startswith(f"eyes.{prefix}"))


@pytest.mark.parametrize(
    ("prefix", "elements"),
    [
        # 3 x 64 x 9, a bias and a norm.
        ("conv_stem.", 1_728 + 64 + 64),
        # 64 -> 256 by 3 x 3 -> 128: 147,456 + 256 + 32,768 + 128; twice 128 -> 512 -> 128: 589,824 + 512 + 65,536
        # + 128.
        ("blocks.0.", 180_608 + 2 * 656_000),
        # Depthwise 3 x 3 of 128 and a norm, 128 -> 768, depthwise 5 x 5 of 768, 768 -> 256, its scale: 1,280 + 99,072
        # + 19,968 + 196,864 + 256.
        ("blocks.1.0.", 317_440),
        # Depthwise 5 x 5 of 640, 640 -> 2,560 -> 640 and a scale: 16,640 + 1,640,960 + 1,639,040 + 640.
        ("blocks.2.1.", 3_297_280),
        # A norm; 768 queries; key and value of 64 each, downsampled by 3 x 3 with a norm; output; a scale.
        ("blocks.2.9.", 640 + 491_520 + 2 * (5_760 + 640 + 40_960) + 491_520 + 640),
        # A norm, 1,536 queries, key and value of 96, output, a scale.
        ("blocks.3.1.", 1_280 + 1_966_080 + 2 * 122_880 + 1_966_080 + 1_280),
        # 640 + 1,280 features -> 3,840 -> 2,048, each with a norm, and the last norm.
        ("msfa.", 1_920 * 3_840 + 3_840 + 3_840 * 2_048 + 2_048 + 2_048),
    ],
)
def test_the_eyes_have_the_sizes_of_their_blocks(prefix: str, elements: int) -> None:
    assert elements_under(prefix) == elements


def test_the_eyes_are_548_tensors_of_294_million_elements() -> None:
    # As timm 1.0.31 builds mobilenetv5_300m_enc.
    assert len(dict(mobilenet_v5_shapes("eyes"))) == 548
    assert elements_under("") == 294_126_912


def test_e4b_and_e2b_differ_in_their_text_models_alone() -> None:
    large, small = (
        describe_config(catalogue().model(name).config, name=name).parameters_by_part()
        for name in ("gemma-3n-e4b-it", "gemma-3n-e2b-it")
    )
    assert large[Part.VISION] == small[Part.VISION]
    # 35 layers of 3 x 2,048 x 16,384, and 30 of half the width, beside each layer's gates and residuals.
    wide, narrow = 3 * 2_048 * 16_384, 3 * 2_048 * 8_192
    beside = large[Part.FEED_FORWARD] - 35 * wide
    assert small[Part.FEED_FORWARD] - 30 * narrow == beside // 35 * 30


def refused(**sections: Any) -> str | None:
    config = {"model_type": "gemma3n", "text_config": {"model_type": "gemma3n_text", **GEMMA3N}, **sections}
    with pytest.raises(InvalidModelConfig) as caught:
        describe_config(config, name="refused")
    return caught.value.pointer


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("vision_config", "architecture", "resnet50"),
        ("vision_config", "hidden_size", 1024),
        ("vision_config", "model_args", {"depth": 3}),
        ("audio_config", "conf_num_attention_heads", 5),
        ("audio_config", "sscp_conv_channel_size", [10]),
        ("audio_config", "sscp_conv_channel_size", [10, 0]),
        ("audio_config", "sscp_conv_kernel_size", [[3, 3]]),
        ("audio_config", "sscp_conv_kernel_size", [3, 3]),
        ("audio_config", "sscp_conv_stride_size", [[2, 2], [2, 0]]),
        ("audio_config", "input_feat_size", 1),
    ],
)
def test_what_is_not_described_is_refused_with_its_field(section: str, key: str, value: Any) -> None:
    base = GEMMA3N_EARS if section == "audio_config" else {}
    assert refused(**{section: {**base, key: value}}) == f"/model/config/{section}/{key}"
