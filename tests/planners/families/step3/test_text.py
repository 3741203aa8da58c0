"""Step 3.5 and 3.7: windowed layers have heads of their own number, and a gate for each."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidModelConfig
from tests.planners.families.small_recent import STEP3_TEXT

OTHER = {"attention_type": "sliding_attention", "num_attention_heads": 12, "num_attention_groups": 2, "head_dim": 12}


def described(**fields: Any) -> ModelSpec:
    return describe_config({"model_type": "step3p5", **STEP3_TEXT, **fields}, name="small")


def shapes(**fields: Any) -> dict[str, tuple[int, ...]]:
    return {name: weight.shape for name, weight in described(**fields).named_weights()}


def test_windowed_layers_have_the_other_number_of_heads_and_as_many_gates() -> None:
    found = shapes(attention_other_setting=OTHER)
    assert found["model.layers.0.self_attn.q_proj.weight"] == (8 * 12, 64)
    assert found["model.layers.1.self_attn.q_proj.weight"] == (12 * 12, 64)
    assert found["model.layers.1.self_attn.k_proj.weight"] == found["model.layers.0.self_attn.k_proj.weight"]
    assert found["model.layers.0.self_attn.g_proj.weight"] == (8, 64)
    assert found["model.layers.1.self_attn.g_proj.weight"] == (12, 64)


def test_without_another_setting_all_layers_have_the_same_heads() -> None:
    assert shapes()["model.layers.1.self_attn.q_proj.weight"] == (8 * 12, 64)


def test_step_3_7_has_12_full_and_33_windowed_layers_of_96_heads() -> None:
    spec = describe_config(catalogue().model("step-3.7-flash").config, name="step")
    layers: dict[int | None, int] = {None: 0, 512: 0}
    for block in spec.layers:
        if block.kv:
            layers[block.kv.window] += block.repeats
    heads = {operation.heads for block in spec.layers for operation in block.operations if operation.heads}
    assert layers == {None: 12, 512: 33}
    assert heads == {64, 96}


def test_the_gate_scales_what_the_output_projection_reads() -> None:
    operations = {operation.name: operation for operation in described().layers[0].operations}
    assert operations["gate_projection"].matmul_shape == (64, 8)
    assert operations["output_projection"].inputs == ("gated_context",)


@pytest.mark.parametrize(
    ("fields", "dense"),
    [({}, [0, 1, 2]), ({"moe_layers_enum": "1,3"}, [0, 2]), ({"moe_layers_enum": [0]}, [1, 2, 3]),
     ({"first_k_dense_replace": 1}, [0])],
)  # fmt: skip
def test_experts_are_in_the_layers_the_config_says(fields: dict[str, Any], dense: list[int]) -> None:
    blocks = [block for block in described(**fields).layers if block.kind == "dense_layer"]
    assert sorted(layer for block in blocks for layer in block.layers) == dense


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"attention_other_setting": {"num_attention_groups": 4}}, "attention_other_setting/num_attention_groups"),
        ({"attention_other_setting": {**OTHER, "head_dim": 16}}, "attention_other_setting/head_dim"),
        ({"num_sliding_attention_heads": 9}, "num_key_value_heads"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ({"moe_layers_enum": "1,x"}, "moe_layers_enum"),
        ({"moe_layers_enum": "1,\u00b2"}, "moe_layers_enum"),
        ({"moe_layers_enum": "1" * 5_000}, "moe_layers_enum"),
        ({"use_moe_router_bias": False}, "use_moe_router_bias"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok"),
    ],
)  # fmt: skip
def test_what_is_not_described_is_refused_by_name(fields: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        described(**fields)
    assert caught.value.pointer == f"/model/config/{pointer}"
