"""Llama-like mixtures of experts: counts worked out by hand, and what their configs may not say."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from plimsoll.planners.architecture import KvKind, ModelSpec, Part
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidModelConfig
from tests.planners.families.small_mixtures import LOCAL, NUMBERED, QWEN2, ROUTED, SPARSE


def published(name: str) -> ModelSpec:
    return describe_config(catalogue().model(name).config, name=name)


def small(model_type: str, **fields: Any) -> ModelSpec:
    return describe_config({"model_type": model_type, **fields}, name="small")


def refused(model_type: str, **fields: Any) -> InvalidModelConfig:
    with pytest.raises(InvalidModelConfig) as caught:
        small(model_type, **fields)
    return caught.value


@pytest.mark.parametrize(
    ("name", "parameters", "active"),
    [
        # Embedding and head 2 x 32,000 x 4,096 = 262,144,000; a layer: attention 2 x 4,096^2 + 2 x 1,024 x 4,096 =
        # 41,943,040, router 8 x 4,096, an expert 3 x 4,096 x 14,336 = 176,160,768, norms 8,192; 32 of them with 8
        # experts 46,440,644,608, with 2 12,617,777,152; last norm 4,096.
        ("mistralai/Mixtral-8x7B-v0.1", 46_702_792_704, 12_879_925_248),
        # 2 x 151,936 x 2,048 = 622,329,856; a layer: q and o 2 x 4,096 x 2,048, k and v 2 x 512 x 2,048, their norms
        # 256, router 128 x 2,048, norms 4,096 = 19,140,864; an expert 3 x 2,048 x 768 = 4,718,592; 48 layers with
        # 128 experts 29,909,790,720, with 8 2,730,700,800; last norm 2,048.
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624, 3_353_032_704),
        # Embedding and head 2 x 102,400 x 2,048 = 419,430,400; attention 28 x 4 x 2,048^2 = 469,762,048; one dense
        # layer 3 x 2,048 x 10,944 = 67,239,936; an expert 3 x 2,048 x 1,408 = 8,650,752: 27 layers with 64 and two
        # shared ones 15,415,640,064, with 6 and two 1,868,562,432; routers 27 x 131,072; norms 57 x 2,048.
        ("deepseek-ai/deepseek-moe-16b-base", 16_375_728_128, 2_828_650_496),
    ],
)
def test_the_count_is_the_sum_of_the_shapes(name: str, parameters: int, active: int) -> None:
    spec = published(name)
    assert spec.parameters == parameters
    assert spec.active_parameters == active


def test_the_active_parameters_of_qwen3_235b_are_22_billion_as_named() -> None:
    assert round(published("Qwen/Qwen3-235B-A22B").active_parameters / 1e9) == 22


def test_the_shared_expert_of_qwen1_5_moe_is_as_wide_as_its_config_says() -> None:
    parts = published("Qwen/Qwen1.5-MoE-A2.7B").parameters_by_part()
    assert parts[Part.SHARED_EXPERT] == 24 * 3 * 2048 * 5632
    # 60 experts' scores and the shared expert's.
    assert parts[Part.ROUTER] == 24 * 61 * 2048


def test_dense_layers_stand_before_the_experts() -> None:
    assert [(block.kind, block.layers) for block in small("glm4_moe", **ROUTED).layers] == [
        ("dense_layer", (0,)),
        ("expert_layer", (1, 2)),
    ]


@pytest.mark.parametrize(
    ("fields", "dense"),
    [
        ({}, set()),
        ({"decoder_sparse_step": 2}, {0, 2}),
        ({"mlp_only_layers": [1]}, {1}),
        ({"mlp_only_layers": []}, set()),
    ],
)
def test_layers_between_the_steps_are_dense(fields: dict[str, Any], dense: set[int]) -> None:
    layers = small("qwen3_moe", **NUMBERED, **fields).layers
    assert {layer for block in layers if block.kind == "dense_layer" for layer in block.layers} == dense


def test_the_balancing_bias_is_no_trainable_parameter() -> None:
    weights = [weight for _, weight in small("glm4_moe", **ROUTED).named_weights() if weight.is_buffer]
    assert [weight.shape for weight in weights] == [(8,), (8,)]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"use_sliding_window": True, "sliding_window": 32},
        {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1},
    ],
)
def test_qwen2_moe_slides_where_transformers_does(fields: dict[str, Any]) -> None:
    spec = small("qwen2_moe", **QWEN2, **fields)
    windows = {layer: block.kv.window for block in spec.layers if block.kv for layer in block.layers}
    types = AutoConfig.for_model("qwen2_moe", **QWEN2, **fields).layer_types
    assert [windows[layer] for layer in range(3)] == [32 if kind == "sliding_attention" else None for kind in types]


@pytest.mark.parametrize(
    ("model_type", "config", "window"),
    [("mixtral", LOCAL, 32), ("phimoe", LOCAL, 32), ("qwen3_moe", NUMBERED, None), ("minimax_m2", LOCAL, None)],
)
def test_a_window_is_used_by_the_families_that_have_one(
    model_type: str, config: dict[str, Any], window: int | None
) -> None:
    spec = small(model_type, **config, sliding_window=32)
    assert {block.kv.window for block in spec.layers if block.kv} == {window}


def test_qwen3_moe_slides_in_every_layer_once_told_to() -> None:
    spec = small("qwen3_moe", **NUMBERED, sliding_window=32, use_sliding_window=True)
    assert {(block.kv.kind, block.kv.window) for block in spec.layers if block.kv} == {(KvKind.SLIDING_WINDOW, 32)}


@pytest.mark.parametrize(("chosen", "is_valid"), [(3, True), (4, True), (5, False)])
def test_no_more_experts_work_on_a_token_than_there_are(chosen: int, is_valid: bool) -> None:
    config = {**LOCAL, "num_experts_per_tok": chosen}
    if is_valid:
        assert small("mixtral", **config).experts_per_token == chosen
    else:
        assert refused("mixtral", **config).pointer == "/model/config/num_experts_per_tok"


@pytest.mark.parametrize(
    ("model_type", "config", "key", "value"),
    [
        ("minimax_m2", LOCAL, "attn_type_list", [1, 0, 1]),
        ("minimax_m2", LOCAL, "use_qk_norm", False),
        ("minimax_m2", LOCAL, "shared_intermediate_size", 12),
        ("deepseek", ROUTED, "moe_layer_freq", 2),
        ("qwen3_moe", NUMBERED, "shared_expert_intermediate_size", 12),
        ("qwen3_moe", NUMBERED, "mlp_only_layers", [[1]]),
        ("qwen3_moe", NUMBERED, "mlp_only_layers", 1),
    ],
)
def test_a_form_of_the_family_that_is_not_described_is_refused_by_name(
    model_type: str, config: dict[str, Any], key: str, value: Any
) -> None:
    assert refused(model_type, **config, **{key: value}).pointer.startswith(f"/model/config/{key}")


@pytest.mark.parametrize("key", ["n_routed_experts", "num_experts_per_tok", "intermediate_size"])
def test_a_missing_size_of_deepseek_is_named(key: str) -> None:
    config = {name: value for name, value in ROUTED.items() if name != key}
    assert refused("deepseek", **config).pointer == f"/model/config/{key}"


def test_multi_token_layers_are_told_of_and_not_counted() -> None:
    with_layers = small("glm4_moe", **ROUTED, num_nextn_predict_layers=1)
    assert with_layers.parameters == small("glm4_moe", **ROUTED).parameters
    assert any("Multi-token prediction layers (1)" in note for note in with_layers.assumptions)
    assert small("glm4_moe", **ROUTED, num_nextn_predict_layers=0).assumptions == ()


def test_multi_token_modules_of_minimax_count_their_layers() -> None:
    spec = small("minimax_m2", **LOCAL, num_mtp_modules=3, mtp_transformer_layers=2)
    assert any("Multi-token prediction layers (6)" in note for note in spec.assumptions)


@pytest.mark.parametrize(("groups", "is_valid"), [(1, True), (4, True), (8, True), (3, False), (16, False), (0, False)])
@pytest.mark.parametrize("model_type", ["deepseek_v3", "dots1", "glm4_moe"])
def test_groups_of_experts_have_as_many_each(model_type: str, groups: int, is_valid: bool) -> None:
    # Eight experts.
    fields = {**SPARSE, "n_group": groups}
    if is_valid:
        assert small(model_type, **fields).experts_per_token == 2
    else:
        assert refused(model_type, **fields).pointer == "/model/config/n_group"


def test_groups_are_not_asked_of_families_that_have_none() -> None:
    # Mixtral's router knows none: the key is unread, and said to be.
    spec = small("mixtral", **LOCAL, n_group=3)
    (said,) = spec.assumptions
    assert said.endswith(": n_group.")
