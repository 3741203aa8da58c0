"""Configs that came as files: those that transformers wrote with Python's own numbers, and very long ones."""

import json

import pytest

from plimsoll.planners.families import describe_config
from plimsoll.planners.families.reading.stored_formats import stored_formats
from plimsoll.planners.ground.errors import InvalidModelConfig
from plimsoll.service.ground.canonical import canonical_json
from plimsoll.service.models.config_files import checked_config
from tests.planners.factories import LLAMA_3_8B

EXPERTS = [
    f"model.layers.{layer}.mlp.experts.{expert}.{name}"
    for layer in range(60)
    for expert in range(256)
    for name in ("gate_proj", "up_proj", "down_proj")
]


def _checked(**more: object) -> dict[str, object]:
    return checked_config(json.dumps({**LLAMA_3_8B, **more}).encode(), pointer="/model/path")


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN"])
def test_numbers_that_json_lacks_are_told_as_transformers_5_writes_them(number: str):
    config = _checked(time_step_limit=[0.0, float(number)])
    assert config["time_step_limit"] == [0.0, {"__float__": number}]
    assert canonical_json(config)
    assert describe_config(config, name="model").parameters == describe_config(LLAMA_3_8B, name="model").parameters


def test_a_size_must_be_finite():
    config = _checked(hidden_size=float("inf"))
    with pytest.raises(InvalidModelConfig) as refused:
        describe_config(config, name="model")
    assert refused.value.pointer == "/model/config/hidden_size"


def test_a_list_of_every_matrix_of_every_expert_is_read_by_kind():
    quantized = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"type": "int", "num_bits": 4}}},
        "ignore": ["lm_head", "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.shared_experts.up_proj", *EXPERTS],
    }
    config = _checked(quantization_config=quantized)
    assert len(json.dumps(quantized)) > 1_900_000
    stored = stored_formats(config)
    assert stored is not None
    assert stored.weights == "int4-experts"
    assert config["quantization_config"]["ignore"] == [
        "lm_head",
        "model.layers.0.self_attn.q_proj",
        "model.layers.1.mlp.shared_experts.up_proj",
        *EXPERTS[:3],
    ]


def test_short_lists_stay_as_they_are():
    names = [f"model.layers.{layer}.mlp.gate" for layer in range(60)]
    quantized = {"quant_method": "fp8", "modules_to_not_convert": names}
    assert _checked(quantization_config=quantized)["quantization_config"] == quantized


def test_other_long_lists_are_refused():
    with pytest.raises(InvalidModelConfig, match="more than 2,000 entries"):
        _checked(labels=EXPERTS)
