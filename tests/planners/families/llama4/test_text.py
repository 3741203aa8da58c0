"""Llama 4: which layers attend in chunks and which have experts."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.architecture import KvKind, ModelSpec, OperationKind, Part
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidModelConfig
from tests.planners.families.small_mixtures import LLAMA4, LLAMA4_VISION


def small(**fields: Any) -> ModelSpec:
    return describe_config({"model_type": "llama4_text", **LLAMA4, **fields}, name="small")


def layers_of(spec: ModelSpec, kind: KvKind) -> set[int]:
    return {layer for block in spec.layers if block.kv and block.kv.kind is kind for layer in block.layers}


def test_every_fourth_layer_attends_to_everything_and_has_no_rotary_positions() -> None:
    spec = small()
    assert layers_of(spec, KvKind.FULL_ATTENTION) == {3}
    assert layers_of(spec, KvKind.CHUNKED_LOCAL) == {0, 1, 2, 4}
    for block in spec.layers:
        has_rotary = any(op.kind is OperationKind.ROTARY for op in block.operations)
        assert has_rotary == (3 not in block.layers)


def test_a_chunk_is_8192_tokens_unless_given() -> None:
    assert {block.kv.window for block in small().layers if block.kv} == {8192, None}
    assert {block.kv.window for block in small(attention_chunk_size=32).layers if block.kv} == {32, None}


def test_without_chunks_every_layer_attends_to_everything() -> None:
    assert layers_of(small(attention_chunk_size=None), KvKind.FULL_ATTENTION) == {0, 1, 2, 3, 4}


def test_layer_types_go_before_the_rotary_rule() -> None:
    types = ["full_attention"] * 4 + ["chunked_attention"]
    assert layers_of(small(layer_types=types), KvKind.CHUNKED_LOCAL) == {4}


@pytest.mark.parametrize(
    ("fields", "with_experts"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"interleave_moe_layer_step": 2}, {1, 3}),
        ({"moe_layers": [2]}, {2}),
        ({"moe_layers": []}, set()),
    ],
)
def test_experts_are_in_every_nth_layer_or_those_listed(fields: dict[str, Any], with_experts: set[int]) -> None:
    layers = small(**fields).layers
    assert {layer for block in layers if block.kind == "expert_layer" for layer in block.layers} == with_experts


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("no_rope_layers", [1, 0]),
        ("layer_types", ["full_attention"]),
        ("layer_types", ["linear_attention"] * 5),
        ("moe_layers", ["1"]),
        ("num_experts_per_tok", 5),
    ],
)
def test_lists_that_do_not_fit_the_layers_are_refused(key: str, value: Any) -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        small(**{key: value})
    assert caught.value.pointer == f"/model/config/{key}"


def test_17_billion_parameters_of_scout_work_on_a_token() -> None:
    spec = describe_config(catalogue().model("meta-llama/Llama-4-Scout-17B-16E-Instruct").config, name="scout")
    # The name leaves the looked-up embedding (202,048 x 5,120) out.
    parts = spec.parameters_by_part()
    assert round((spec.active_parameters - parts[Part.EMBEDDING]) / 1e9) == 17


def test_the_towers_heads_must_divide_its_width() -> None:
    text = {"model_type": "llama4_text", **LLAMA4}
    config = {"model_type": "llama4", "text_config": text, "vision_config": {**LLAMA4_VISION, "num_attention_heads": 3}}
    with pytest.raises(InvalidModelConfig) as caught:
        describe_config(config, name="wrapped")
    assert caught.value.pointer == "/model/config/vision_config/num_attention_heads"
