"""Wrappers: the text model as on its own, the vision tower counted beside it and never split."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.architecture import Part, Split
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidModelConfig

TEXT: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}
GEMMA4_TEXT: dict[str, Any] = {**TEXT, "model_type": "gemma4_text", "hidden_size_per_layer_input": 0}


def wrapped(**changes: Any) -> dict[str, Any]:
    return {"model_type": "llava", "text_config": TEXT, "vision_config": {"model_type": "clip_vision_model"}, **changes}


def refused(config: dict[str, Any]) -> str:
    with pytest.raises(InvalidModelConfig) as caught:
        describe_config(config, name="refused")
    assert caught.value.pointer is not None
    return caught.value.pointer.removeprefix("/model/config/")


def test_the_text_model_is_the_same_as_on_its_own() -> None:
    alone, inside = describe_config(TEXT, name="alone"), describe_config(wrapped(), name="inside")
    assert inside.forward_flops_per_token(100) == alone.forward_flops_per_token(100)
    assert inside.parameters - inside.parameters_by_part()[Part.VISION] == alone.parameters
    assert [block.kv for block in inside.layers] == [block.kv for block in alone.layers]


def test_vision_weights_stand_whole_on_every_rank() -> None:
    seen = [w for w in describe_config(wrapped(), name="inside").embedding.weights if w.part is Part.VISION]
    assert all(weight.split is Split.REPLICATED and weight.local_shape(8) == weight.shape for weight in seen)


def test_gemma_3s_tower_and_projector_have_the_published_size() -> None:
    # A layer of the tower: 4 x (1,152^2 + 1,152) + 2 x 1,152 x 4,304 + 4,304 + 1,152 + 4 x 1,152 = 15,239,504, 27 of
    # them 411,466,608; patches 1,152 x 3 x 14^2 + 1,152 = 678,528; 4,096 positions 4,718,592; last norm 2,304:
    # 416,866,032, SigLIP without its head. Projector 1,152 x 2,560 + 1,152.
    parts = describe_config(catalogue().model("gemma-3-4b-it").config, name="4b").parameters_by_part()
    assert parts[Part.VISION] == 416_866_032 + 1_152 * 2_560 + 1_152


def test_a_text_config_is_completed_by_its_classs_defaults() -> None:
    # LLaVA-1.5-7B's own says no more of its text model than this.
    text = {"model_type": "llama", "vocab_size": 32_064, "max_position_embeddings": 4096}
    spec = describe_config(wrapped(text_config=text), name="7b")
    # Llama's 7B with 64 more words in table and head.
    assert spec.parameters - spec.parameters_by_part()[Part.VISION] == 6_738_415_616 + 2 * 64 * 4096


@pytest.mark.parametrize(
    ("outer", "inner", "tied"), [(None, None, False), (None, True, True), (True, False, True), (False, True, False)]
)
def test_the_wrapper_says_first_whether_the_head_is_tied(outer: bool | None, inner: bool | None, tied: bool) -> None:
    config = wrapped(text_config={**TEXT, "tie_word_embeddings": inner}, tie_word_embeddings=outer)
    assert describe_config(config, name="inside").tied_head is tied


def test_an_unknown_tower_is_refused() -> None:
    assert refused(wrapped(vision_config={"model_type": "telescope"})) == "vision_config/model_type"


def test_an_unknown_text_model_is_refused() -> None:
    assert refused(wrapped(text_config={**TEXT, "model_type": "lama"})) == "text_config/model_type"


def test_a_size_missing_within_is_pointed_at_within() -> None:
    text = {key: value for key, value in TEXT.items() if key != "hidden_size"} | {"model_type": "olmo2"}
    assert refused(wrapped(text_config=text)) == "text_config/hidden_size"


def test_a_section_that_is_no_object_is_refused() -> None:
    assert refused(wrapped(text_config=[TEXT])) == "text_config"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        # All layers, and a number that leaves no windowed layer with a cache.
        ("num_kv_shared_layers", 2),
        ("use_bidirectional_attention", "all"),
    ],
)
def test_what_is_not_described_of_gemma_4_is_refused_by_name(key: str, value: Any) -> None:
    assert refused({**GEMMA4_TEXT, key: value}) == key


@pytest.mark.parametrize(("chosen", "is_valid"), [(5, True), (6, True), (7, False)])
def test_gemma_4_chooses_no_more_experts_than_there_are(chosen: int, is_valid: bool) -> None:
    experts = {"enable_moe_block": True, "num_experts": 6, "top_k_experts": chosen, "moe_intermediate_size": 16}
    config = {**GEMMA4_TEXT, **experts}
    if is_valid:
        assert describe_config(config, name="small").experts_per_token == chosen
    else:
        assert refused(config) == "top_k_experts"


def test_gemma_4_with_ears_is_refused() -> None:
    config = {"model_type": "gemma4", "text_config": GEMMA4_TEXT, "vision_config": {}, "audio_config": {"depth": 2}}
    assert refused(config) == "audio_config"


def test_a_gemma_that_looks_both_ways_is_refused() -> None:
    assert refused({**TEXT, "model_type": "gemma3_text", "use_bidirectional_attention": True}) == (
        "use_bidirectional_attention"
    )


def _blind(config: dict[str, Any], how: str) -> dict[str, Any]:
    kept = {key: value for key, value in config.items() if key != "vision_config"}
    return kept if how == "absent" else {**kept, "vision_config": None}


@pytest.mark.parametrize("how", ["null", "absent"])
def test_gemma_4_without_a_vision_config_has_no_tower(how: str) -> None:
    # transformers 5.23, modeling_gemma4.py: `vision_tower` and `embed_vision` are None then.
    blind = describe_config(_blind({"model_type": "gemma4", "text_config": GEMMA4_TEXT}, how), name="blind")
    assert blind.parameters == describe_config(GEMMA4_TEXT, name="alone").parameters


@pytest.mark.parametrize("how", ["null", "absent"])
@pytest.mark.parametrize(("model_type", "tower"), [("llava", "clip_vision_model"), ("mistral3", "pixtral")])
def test_others_have_the_tower_that_their_class_has_by_default(model_type: str, tower: str, how: str) -> None:
    # transformers 5.23, configuration_llava.py and configuration_mistral3.py.
    sizes = {
        "model_type": tower, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
        "num_attention_heads": 16, "patch_size": 14, "image_size": 336 if model_type == "llava" else 1540,
    }  # fmt: skip
    config = {"model_type": model_type, "text_config": TEXT, "vision_config": sizes}
    blind = describe_config(_blind(config, how), name="blind")
    assert blind.parameters == describe_config(config, name="seeing").parameters
