"""MiMo-V2-Flash: its two kinds of attention, under transformers' names and the published config's."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidModelConfig
from tests.planners.families.small_mixtures import MIMO


def small(**fields: Any) -> ModelSpec:
    return describe_config({"model_type": "mimo_v2_flash", **MIMO, **fields}, name="small")


def windowed_layers(spec: ModelSpec) -> set[int]:
    return {layer for block in spec.layers if block.kv and block.kv.window for layer in block.layers}


def test_309_billion_parameters_of_which_15_work_on_a_token() -> None:
    spec = describe_config(catalogue().model("XiaomiMiMo/MiMo-V2-Flash").config, name="mimo")
    # As the model card says.
    assert round(spec.parameters / 1e9) == 309
    assert round(spec.active_parameters / 1e9) == 15


def test_the_published_pattern_is_the_config_classs_own() -> None:
    spec = describe_config(catalogue().model("XiaomiMiMo/MiMo-V2-Flash").config, name="mimo")
    assert windowed_layers(spec) == set(range(48)) - {0, 5, 11, 17, 23, 29, 35, 41, 47}


def test_windowed_layers_cache_twice_the_heads() -> None:
    # 2 or 4 heads x (12 + 10) elements.
    elements = {block.kv.window: block.kv.elements_per_token for block in small().layers if block.kv}
    assert elements == {None: 44, 32: 88}


def test_the_window_includes_the_token_itself() -> None:
    assert windowed_layers(small()) == {1, 2, 3, 4, 6}
    assert {block.kv.window for block in small(sliding_window_size=None).layers if block.kv} == {None, 129}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layer_types", ["full_attention"]),
        ("layer_types", ["linear_attention"] * 7),
        ("mlp_layer_types", ["sparse"]),
        ("mlp_layer_types", ["other"] * 7),
        ("hybrid_layer_pattern", [2] * 7),
        ("swa_num_key_value_heads", 2),
        ("swa_v_head_dim", 12),
        ("add_full_attention_sink_bias", True),
        ("n_shared_experts", 1),
        ("num_key_value_heads", 8),
        ("num_experts_per_tok", 5),
    ],
)
def test_another_arrangement_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        small(**{key: value})
    assert caught.value.pointer == f"/model/config/{key}"
