"""Llama 3.2 Vision: layers that only images wake."""

from __future__ import annotations

import pytest

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidModelConfig
from tests.planners.families.small_recent import MLLAMA_TOWER, TEXT


def described(**text: object) -> ModelSpec:
    config = {"model_type": "mllama", "text_config": {**TEXT, **text}, "vision_config": MLLAMA_TOWER}
    return describe_config(config, name="small")


def test_eight_of_the_forty_layers_attend_to_images_and_cost_text_nothing() -> None:
    spec = describe_config(catalogue().model("llama-3.2-11b-vision").config, name="11b")
    crossing = next(block for block in spec.layers if block.kind == "cross_attention_layer")
    assert crossing.layers == (3, 8, 13, 18, 23, 28, 33, 38)
    assert crossing.operations == ()
    assert crossing.kv is None
    assert any("do nothing for text" in note for note in spec.assumptions)


def test_text_costs_what_the_llama_inside_costs() -> None:
    llama = {**TEXT, "model_type": "llama", "num_hidden_layers": 3}
    spec = described(cross_attention_layers=[1])
    assert spec.forward_flops_per_token(50) == describe_config(llama, name="x").forward_flops_per_token(50)


def test_the_table_has_rows_for_image_tokens_that_the_head_has_not() -> None:
    shapes = {name: weight.shape for name, weight in described().named_weights()}
    assert shapes["language_model.model.embed_tokens.weight"] == (131 + 8, 64)
    assert shapes["language_model.lm_head.weight"] == (131, 64)


def test_a_head_tied_to_a_table_of_more_rows_is_refused() -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        described(tie_word_embeddings=True)
    assert caught.value.pointer == "/model/config/text_config/tie_word_embeddings"
