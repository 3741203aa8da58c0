"""What a config must say, and what happens to the rest of it."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners import families
from plimsoll.planners.families import describe_config, known_model_types, registry
from plimsoll.planners.ground.errors import InvalidModelConfig, UnknownModelType

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}


def changed(**fields: Any) -> dict[str, Any]:
    return {**LLAMA, **fields}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in LLAMA.items() if name != key}


def refused(config: dict[str, Any]) -> InvalidModelConfig:
    with pytest.raises(InvalidModelConfig) as caught:
        describe_config(config, name="refused")
    return caught.value


@pytest.mark.parametrize(
    "key", ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"]
)
def test_a_missing_size_is_named(key: str) -> None:
    assert refused(without(key)).pointer == f"/model/config/{key}"
    assert refused(changed(**{key: None})).pointer == f"/model/config/{key}"


@pytest.mark.parametrize("value", [0, -1, 1.5, "64", True, [64], {"size": 64}, float("nan"), float("inf"), 10**9])
def test_a_size_that_is_no_positive_whole_number_is_refused(value: Any) -> None:
    error = refused(changed(hidden_size=value))
    assert error.pointer == "/model/config/hidden_size"
    assert "whole number" in error.detail


@pytest.mark.parametrize(("layers", "is_valid"), [(1, True), (1_000, True), (1_001, False)])
def test_a_model_has_at_most_ten_thousand_layers(layers: int, is_valid: bool) -> None:
    config = changed(num_hidden_layers=layers)
    if is_valid:
        assert describe_config(config, name="deep").num_layers == layers
    else:
        assert refused(config).pointer == "/model/config/num_hidden_layers"


def test_heads_must_divide_the_hidden_size_unless_their_size_is_given() -> None:
    assert refused(changed(hidden_size=68)).pointer == "/model/config/num_attention_heads"
    assert describe_config(changed(hidden_size=68, head_dim=10), name="given").hidden_size == 68


@pytest.mark.parametrize("value", [0, -8, "16"])
def test_a_head_has_features(value: Any) -> None:
    error = refused(changed(head_dim=value))
    assert error.pointer == "/model/config/head_dim"
    assert "whole number from 1" in error.detail


def test_a_head_s_features_may_be_left_to_the_hidden_size() -> None:
    weights = dict(describe_config(changed(head_dim=None), name="m").named_weights())
    # 64 features over 8 heads are 8 a head; of keys there are 4.
    assert weights["model.layers.0.self_attn.k_proj.weight"].shape == (32, 64)


def test_key_value_heads_must_divide_the_heads() -> None:
    error = refused(changed(num_key_value_heads=3))
    assert error.pointer == "/model/config/num_key_value_heads"
    assert "(3)" in error.detail
    assert "(8)" in error.detail


@pytest.mark.parametrize("value", [1, "true", []])
def test_a_flag_that_is_no_boolean_is_refused(value: Any) -> None:
    assert refused(changed(tie_word_embeddings=value)).pointer == "/model/config/tie_word_embeddings"


@pytest.mark.parametrize("value", ["full_attention", [1, 2], {"0": "full_attention"}])
def test_layer_types_that_are_no_list_of_texts_are_refused(value: Any) -> None:
    assert refused(changed(layer_types=value)).pointer == "/model/config/layer_types"


def test_layer_types_must_name_every_layer() -> None:
    error = refused(changed(layer_types=["full_attention"]))
    assert error.pointer == "/model/config/layer_types"
    assert "1 layers of 2" in error.detail


def test_an_unknown_model_type_names_the_nearest() -> None:
    with pytest.raises(UnknownModelType) as caught:
        describe_config(changed(model_type="lama"), name="unknown", pointer="/model/describe")
    assert "llama" in caught.value.nearest
    assert caught.value.pointer == "/model/describe/model_type"


@pytest.mark.parametrize("value", [None, 7, ["llama"]])
def test_a_missing_model_type_is_refused_with_the_known_ones(value: Any) -> None:
    error = refused(changed(model_type=value))
    assert error.pointer == "/model/config/model_type"
    assert all(known in error.detail for known in known_model_types())


def test_a_key_that_nobody_reads_is_named_in_the_assumptions() -> None:
    spec = describe_config(changed(mystery_gate=True, another_thing=1), name="odd")
    (said,) = spec.assumptions
    assert said.endswith(": another_thing, mystery_gate.")


def test_keys_that_change_nothing_are_not_worth_a_note() -> None:
    spec = describe_config(changed(torch_dtype="bfloat16", rope_theta=1e4, architectures=["X"]), name="plain")
    assert spec.assumptions == ()


def test_the_config_is_left_as_it_was() -> None:
    config = changed(mystery_gate=True)
    before = dict(config)
    describe_config(config, name="read")
    assert config == before


@pytest.mark.parametrize("key", ["n_embd", "n_layer", "n_head", "vocab_size"])
def test_gpt2_names_its_sizes_otherwise(key: str) -> None:
    config = {"model_type": "gpt2", "vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 8}
    del config[key]
    assert refused(config).pointer == f"/model/config/{key}"


def test_the_package_gives_what_it_names_and_nothing_else():
    assert families.describe_config is registry.describe_config
    with pytest.raises(AttributeError, match="'reader'"):
        _ = families.reader


def test_a_model_type_that_is_no_text_is_told_so() -> None:
    assert refused(changed(model_type={"a": 1})).detail.startswith("'model_type' must be text;")
    assert refused(without("model_type")).detail.startswith("'model_type' is missing;")


@pytest.mark.parametrize(
    ("architectures", "is_noted"),
    [(["LlamaForSequenceClassification"], True), (["LlamaForCausalLM"], False), (None, False), ("text", False)],
)
def test_a_head_that_tells_no_words_is_said_to_be_left_out(architectures: Any, is_noted: bool) -> None:
    notes = describe_config(changed(architectures=architectures), name="x").assumptions
    assert any("LlamaForSequenceClassification" in note for note in notes) is is_noted


def test_phis_norms_of_queries_and_keys_are_refused() -> None:
    phi = {**LLAMA, "model_type": "phi", "qk_layernorm": True}
    assert refused(phi).pointer == "/model/config/qk_layernorm"
