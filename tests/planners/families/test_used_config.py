"""What of a config counts, and is kept: it describes the same model as the whole."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import described_parts, read_model
from plimsoll.planners.families.reading.stored_formats import stored_formats, without_repeats
from plimsoll.planners.families.registry import MOST_DESCRIBED_PARTS, MOST_NAMED_KEYS
from plimsoll.planners.ground.errors import InvalidModelConfig

# One model of each family: those of a family are read alike.
FAMILIES = {model.config["model_type"]: model for model in catalogue().models}.values()
LLAMA = catalogue().model("meta-llama/Llama-3.1-8B").config
JUNK = {"nobody_reads_this": ["x" * 100] * 100, "another": {"deep": {"deeper": 1}}}


def plain(spec: ModelSpec) -> ModelSpec:
    return dataclasses.replace(spec, assumptions=())


@pytest.mark.parametrize("model", FAMILIES, ids=lambda model: model.config["model_type"])
def test_what_is_kept_of_a_config_is_read_as_the_whole_is(model: Any):
    sections = {key: {**value, **JUNK} for key, value in model.config.items() if key in ("text_config",)}
    whole = {**model.config, **sections, **JUNK}
    read = read_model(whole, name=model.id)
    again = read_model(read.used, name=model.id)
    assert plain(again.spec) == plain(read_model(model.config, name=model.id).spec)
    assert stored_formats(read.used) == stored_formats(model.config)
    assert again.used == read.used
    assert JUNK.keys().isdisjoint(read.used.keys() | read.used.get("text_config", {}).keys())


@pytest.mark.parametrize("key", ["id2label", "label2id", "auto_map", "task_specific_params", "generation_config"])
def test_labels_and_places_of_code_are_not_kept(key: str):
    read = read_model({**LLAMA, key: {"0": "A"}}, name="labelled")
    assert key not in read.used
    assert read.unread is None


def test_a_few_unread_keys_are_named_and_the_rest_counted():
    keys = [f"unread_{number:04}" for number in range(MOST_NAMED_KEYS + 1)]
    read = read_model({**LLAMA, **dict.fromkeys(keys, 1)}, name="odd")
    assert read.unread == f"These config keys were not used: {', '.join(keys[:-1])}, and 1 more."


def test_a_long_name_is_cut():
    read = read_model({**LLAMA, "x" * 1000: 1}, name="odd")
    assert read.unread == f"These config keys were not used: {'x' * 60}…."


def test_of_modules_that_differ_in_numbers_one_is_kept():
    stored = {
        "quant_method": "compressed-tensors",
        "ignore": [f"model.layers.{layer}.{part}" for layer in range(61) for part in ("self_attn", "gate")],
        "quantized_layers": {f"layers.{layer}": {"quant_algo": "FP8"} for layer in range(9)} | {"head": {}},
        # Two groups of different formats are two.
        "config_groups": {f"group_{bits}": {"weights": {"num_bits": bits, "type": "int"}} for bits in (4, 8)},
    }
    assert without_repeats(stored) == {
        **stored,
        "ignore": ["model.layers.0.self_attn", "model.layers.0.gate"],
        "quantized_layers": {"layers.0": {"quant_algo": "FP8"}, "head": {}},
    }


@pytest.mark.parametrize(("layers", "is_refused"), [(500, False), (600, True)])
def test_a_model_of_endlessly_many_different_weights_is_refused(layers: int, is_refused: bool):
    config = dict(catalogue().model("google/gemma-3-4b-it").config)
    # 16 weights in each layer of its tower, which has 27.
    tall = {**config, "vision_config": {**config["vision_config"], "num_hidden_layers": layers}}
    if not is_refused:
        assert 16 * layers < described_parts(read_model(tall, name="tall").spec) < MOST_DESCRIBED_PARTS
        return
    with pytest.raises(InvalidModelConfig, match=r"differ from layer to layer; at most 8,192 can be described"):
        read_model(tall, name="tall")
