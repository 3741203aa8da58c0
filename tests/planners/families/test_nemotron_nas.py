"""Models that a search cut out of a Llama: layers of many sizes, some without attention."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidModelConfig

SIZES = {"model_type": "nemotron-nas", "vocab_size": 128, "hidden_size": 512, "num_attention_heads": 8}
WHOLE: dict[str, Any] = {"attention": {"n_heads_in_group": 4, "no_op": False}, "ffn": {"ffn_mult": 1.0, "no_op": False}}
DEAF: dict[str, Any] = {**WHOLE, "attention": {"n_heads_in_group": None, "no_op": True}}
NARROW: dict[str, Any] = {**WHOLE, "ffn": {"ffn_mult": None, "no_op": True}}


def described(*blocks: Any) -> ModelSpec:
    return describe_config({**SIZES, "num_hidden_layers": len(blocks), "block_configs": list(blocks)}, name="cut")


def test_a_layer_has_the_halves_that_its_block_says() -> None:
    names = {name for name, _ in described(WHOLE, DEAF, NARROW).named_weights()}
    assert "model.layers.0.self_attn.q_proj.weight" in names
    assert not any("layers.1.self_attn" in name or "layers.1.input_layernorm" in name for name in names)
    assert not any("layers.2.mlp" in name or "layers.2.post_attention_layernorm" in name for name in names)


def test_a_layer_without_attention_caches_nothing() -> None:
    assert [block.kv is None for block in described(WHOLE, DEAF).layers] == [False, True]


@pytest.mark.parametrize(
    ("multiple", "width"),
    # Two thirds of the multiple of 512, up to whole steps of 256.
    [(0.75, 256), (0.76, 512), (1.0, 512), (1.5, 512), (1.51, 768)],
)
def test_widths_are_two_thirds_of_the_multiple_in_steps_of_256(multiple: float, width: int) -> None:
    spec = described({**WHOLE, "ffn": {"ffn_mult": multiple, "no_op": False}})
    assert dict(spec.named_weights())["model.layers.0.mlp.up_proj.weight"].shape == (width, 512)


def test_super_49b_attends_in_49_of_its_80_layers_and_has_the_published_count() -> None:
    spec = describe_config(catalogue().model("llama-3.3-nemotron-super-49b").config, name="super")
    assert sum(block.repeats for block in spec.layers if block.kv) == 49
    # Tables 2 x 128,256 x 8,192 = 2,101,346,304; attention 49 x (2 x 8,192^2 + 2 x 8,192 x 1,024) = 7,398,752,256;
    # widths 49 of 5.25 -> 28,672, 6 of 2.625 -> 14,336, 1 of 3.28125 -> 17,920, 10 of 1.3125 -> 7,168,
    # 8 of 1 -> 5,632 and 6 of 0.5 -> 2,816, in all 1,642,496 x 3 x 8,192 = 40,365,981,696; norms (49 + 80 + 1) x 8,192.
    assert spec.parameters == 2_101_346_304 + 7_398_752_256 + 40_365_981_696 + 1_064_960


@pytest.mark.parametrize(
    "block",
    [
        {},
        {"attention": {"no_op": True}},
        {**WHOLE, "attention": {"n_heads_in_group": 3, "no_op": False}},
        {**WHOLE, "attention": {"no_op": True, "replace_with_linear": True}},
        {**WHOLE, "attention": {"n_heads_in_group": 4, "no_op": False, "window_length": 64}},
        {**WHOLE, "ffn": {"ffn_mult": 0, "no_op": False}},
        {**DEAF, "ffn": {"no_op": True}},
    ],
)
def test_a_block_that_is_no_smaller_llama_is_refused(block: Any) -> None:
    with pytest.raises(InvalidModelConfig, match="Layer 0"):
        described(block)


def test_a_list_of_another_length_is_refused() -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        describe_config({**SIZES, "num_hidden_layers": 2, "block_configs": [WHOLE]}, name="cut")
    assert caught.value.pointer == "/model/config/block_configs"
