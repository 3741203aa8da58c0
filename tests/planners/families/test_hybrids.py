"""Hybrids: what each layer is and remembers, that matrices and operations agree, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from plimsoll.planners.architecture import Block, KvKind, ModelSpec, OperationKind, Part
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidModelConfig
from tests.planners.families.small_hybrids import (
    DELTA,
    EXPERTS,
    HYBRID_VARIANTS,
    JAMBA,
    KIMI_LINEAR,
    MAMBA2,
    NEMOTRON_H,
    TEXT,
    TOWER,
)

VARIANTS = [
    pytest.param({"model_type": model_type, **fields}, id=f"{model_type}-{number}")
    for model_type, variants in HYBRID_VARIANTS.items()
    for number, fields in enumerate(variants)
]


def described(name: str) -> ModelSpec:
    return describe_config(catalogue().model(name).config, name=name)


def refused(model_type: str, fields: Mapping[str, Any]) -> str:
    with pytest.raises(InvalidModelConfig) as caught:
        describe_config({"model_type": model_type, **fields}, name="refused")
    return str(caught.value.pointer).removeprefix("/model/config/")


def kinds_by_layer(spec: ModelSpec) -> list[KvKind | None]:
    kinds = {layer: block.kv.kind if block.kv else None for block in spec.layers for layer in block.layers}
    return [kinds[layer] for layer in range(spec.num_layers)]


def matrix_elements(block: Block, experts_per_token: int) -> float:
    """Return the elements of the matrices that one token is multiplied by."""
    return sum(
        weight.elements * (experts_per_token / weight.experts if weight.experts > 1 else 1)
        for weight in block.weights
        if weight.is_linear or (weight.part is Part.ROUTER and not weight.is_buffer)
    )


@pytest.mark.parametrize("config", VARIANTS)
def test_a_token_is_multiplied_by_every_matrix_of_a_layer_once(config: Mapping[str, Any]) -> None:
    spec = describe_config(config, name="small")
    for block in spec.layers:
        products = sum(op.forward_flops_per_token(1.0) for op in block.operations if op.kind is OperationKind.MATMUL)
        assert products == pytest.approx(2 * matrix_elements(block, spec.experts_per_token))


@pytest.mark.parametrize("config", VARIANTS)
def test_every_tensor_of_a_layer_is_listed_once_and_every_input_is_listed(config: Mapping[str, Any]) -> None:
    for block in describe_config(config, name="small").layers:
        names = [tensor.name for tensor in block.tensors]
        assert len(names) == len(set(names))
        read = {name for operation in block.operations for name in operation.inputs}
        assert read - set(names) <= {f"{half}_output" for half in ("attention", "feed_forward")}


@pytest.mark.parametrize("config", VARIANTS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_shard_is_never_larger_than_the_whole_nor_smaller_than_its_share(
    config: Mapping[str, Any], ranks: int
) -> None:
    for _, weight in describe_config(config, name="small").named_weights():
        local = math.prod(weight.local_shape(ranks)) * weight.tensors
        assert weight.elements <= local * ranks
        assert local <= weight.elements


def test_every_fourth_layer_of_qwen3_5_caches_keys_and_the_others_a_state() -> None:
    kinds = kinds_by_layer(describe_config({"model_type": "qwen3_5_text", **DELTA}, name="small"))
    assert kinds == [KvKind.RECURRENT] * 3 + [KvKind.FULL_ATTENTION]


def test_qwen3_5_27b_keeps_64_kib_a_token_and_147_mib_a_sequence() -> None:
    spec = described("qwen3.5-27b")
    # 16 of 64 layers x 2 x 4 heads x 256 features = 32,768 elements.
    assert sum(block.kv.elements_per_token * block.repeats for block in spec.layers if block.kv) == 32_768
    # 48 layers x 786,432 elements in fp32 and 30,720 in bf16 = 153,944,064 bytes.
    states = [(block.kv.recurrent, block.repeats) for block in spec.layers if block.kv and block.kv.recurrent]
    assert sum((4 * s.memory_elements + 2 * s.convolution_elements) * n for s, n in states) == 153_944_064


def test_the_pattern_says_what_each_layer_of_nemotron_h_is() -> None:
    spec = describe_config({"model_type": "nemotron_h", **NEMOTRON_H}, name="small")
    assert kinds_by_layer(spec) == [KvKind.RECURRENT, None, KvKind.FULL_ATTENTION, None, KvKind.RECURRENT]
    assert [block.kind for block in spec.layers] == [
        "mamba_layer",
        "feed_forward_layer",
        "attention_layer",
        "experts_layer",
    ]


def test_names_and_letters_describe_the_same_nemotron_h() -> None:
    letters = describe_config({"model_type": "nemotron_h", **NEMOTRON_H}, name="small")
    fields = {key: value for key, value in NEMOTRON_H.items() if key != "hybrid_override_pattern"}
    names = {"layers_block_type": ["mamba", "mlp", "attention", "moe", "linear_attention"]}
    assert describe_config({"model_type": "nemotron_h", **fields, **names}, name="small") == letters


def test_jamba_attends_in_its_fifth_layer_of_eight_and_has_experts_in_every_second() -> None:
    spec = described("jamba")
    kinds = kinds_by_layer(spec)
    assert [layer for layer, kind in enumerate(kinds) if kind is KvKind.FULL_ATTENTION] == [4, 12, 20, 28]
    with_experts = {
        layer for block in spec.layers if any(w.part is Part.EXPERT for w in block.weights) for layer in block.layers
    }
    assert with_experts == set(range(1, 32, 2))


def test_kimi_linears_published_list_counts_layers_from_one() -> None:
    kinds = kinds_by_layer(described("kimi-linear"))
    assert [layer for layer, kind in enumerate(kinds) if kind is KvKind.LATENT] == [3, 7, 11, 15, 19, 23, 26]


@pytest.mark.parametrize("name", ["kimi-linear", "jamba", "nemotron-3-nano-30b-a3b", "granite-4.0-h-small"])
def test_a_hybrid_without_positions_rotates_nothing(name: str) -> None:
    kinds = {operation.kind for block in described(name).layers for operation in block.operations}
    assert OperationKind.ATTENTION in kinds
    assert OperationKind.ROTARY not in kinds


@pytest.mark.parametrize(
    ("name", "published"),
    [
        # A multi-token layer is one layer with attention, a matrix from twice the hidden size and three norms:
        # 2 x 2,048^2 + 3 x 2,048 more than the layer itself.
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 81_324_862_720),
        ("Qwen/Qwen3.6-27B", 27_781_427_952),
        ("Qwen/Qwen3.6-35B-A3B", 35_951_822_704),
    ],
)
def test_with_its_multi_token_layer_a_qwen_is_as_large_as_published(name: str, published: int) -> None:
    spec = described(name)
    layer = next(block for block in spec.layers if block.kind == "full_attention")
    assert spec.parameters + layer.elements + 2 * spec.hidden_size**2 + 3 * spec.hidden_size == published


@pytest.mark.parametrize(
    ("name", "active_billions"),
    [
        # As their names say; embeddings and heads count, which some of the names leave out.
        ("qwen3.5-397b-a17b", 17.8),
        ("nemotron-3-nano-30b-a3b", 3.6),
        ("nemotron-3-super-120b-a12b", 12.8),
        ("kimi-linear", 3.5),
        ("jamba", 12.1),
    ],
)
def test_a_few_of_the_experts_work_on_a_token(name: str, active_billions: float) -> None:
    assert described(name).active_parameters / 1e9 == pytest.approx(active_billions, abs=0.05)


def test_the_vision_tower_is_counted_beside_the_text_model_and_never_split() -> None:
    # Qwen3-VL-8B's text model is Qwen3-8B, 8,190,735,360; the tower is the rest of 8,767,123,696.
    parts = described("qwen3-vl-8b").parameters_by_part()
    assert parts[Part.VISION] == 576_388_336
    tower = [weight for weight in described("qwen3-vl-8b").embedding.weights if weight.part is Part.VISION]
    assert all(weight.local_shape(8) == weight.shape for weight in tower)


@pytest.mark.parametrize("model_type", ["qwen3_vl", "qwen3_5"])
def test_a_wrapper_says_that_its_images_are_not_planned(model_type: str) -> None:
    text = DELTA if model_type == "qwen3_5" else TEXT
    spec = describe_config({"model_type": model_type, "text_config": text, "vision_config": TOWER}, name="small")
    assert any("vision" in note for note in spec.assumptions)


@pytest.mark.parametrize(
    ("model_type", "fields", "pointer"),
    [
        ("qwen3_next", {**DELTA, **EXPERTS, "layer_types": ["full_attention"]}, "layer_types"),
        ("qwen3_next", {**DELTA, **EXPERTS, "layer_types": ["sliding_attention"] * 4}, "layer_types"),
        ("qwen3_next", {**DELTA, **EXPERTS, "linear_num_key_heads": 4}, "linear_num_key_heads"),
        ("qwen3_next", {**DELTA, **EXPERTS, "num_experts_per_tok": 6}, "num_experts_per_tok"),
        ("qwen3_next", DELTA, "num_experts"),
        ("qwen3_5_text", {**DELTA, "attn_output_gate": False}, "attn_output_gate"),
        ("qwen3_5_text", {**DELTA, "output_gate_type": "none"}, "output_gate_type"),
        (
            "qwen3_5",
            {"text_config": DELTA, "vision_config": {**TOWER, "deepstack_visual_indexes": [1]}},
            "vision_config/deepstack_visual_indexes",
        ),
        ("jamba", {**JAMBA, "attn_layer_offset": 3}, "attn_layer_offset"),
        ("jamba", {**JAMBA, "expert_layer_offset": 2}, "expert_layer_offset"),
        ("jamba", {**JAMBA, "mamba_dt_rank": "half"}, "mamba_dt_rank"),
        ("bamba", {**TEXT, **MAMBA2, "mamba_n_heads": 3}, "mamba_n_heads"),
        ("bamba", {**TEXT, **MAMBA2, "mamba_d_head": 16}, "mamba_d_head"),
        ("bamba", {**TEXT, **MAMBA2, "attn_layer_indices": [-1]}, "attn_layer_indices"),
        ("bamba", {**TEXT, **MAMBA2, "attn_layer_indices": [4]}, "attn_layer_indices"),
        ("granitemoehybrid", {**TEXT, **MAMBA2, "position_embedding_type": "learned"}, "position_embedding_type"),
        ("granitemoehybrid", {**TEXT, **MAMBA2, "layer_types": ["mamba"]}, "layer_types"),
        ("nemotron_h", {**NEMOTRON_H, "hybrid_override_pattern": "MX"}, "hybrid_override_pattern"),
        ("nemotron_h", {**NEMOTRON_H, "hybrid_override_pattern": None}, "hybrid_override_pattern"),
        ("nemotron_h", {**NEMOTRON_H, "layers_block_type": ["mamba", "conv"]}, "layers_block_type"),
        ("nemotron_h", {**NEMOTRON_H, "mlp_bias": True}, "mlp_bias"),
        ("nemotron_h", {**NEMOTRON_H, "n_shared_experts": 2}, "n_shared_experts"),
        ("nemotron_h", {**NEMOTRON_H, "attention_bias": True}, "attention_bias"),
        ("nemotron_h", {**NEMOTRON_H, "tie_word_embeddings": True}, "tie_word_embeddings"),
        ("kimi_linear", {**KIMI_LINEAR, "mla_use_nope": False}, "mla_use_nope"),
        ("kimi_linear", {**KIMI_LINEAR, "mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ("kimi_linear", {**KIMI_LINEAR, "moe_layer_freq": 2}, "moe_layer_freq"),
        (
            "kimi_linear",
            {**KIMI_LINEAR, "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [0, 1, 2]}},
            "linear_attn_config/kda_layers",
        ),
    ],
)
def test_what_cannot_be_described_is_refused_by_name(model_type: str, fields: Mapping[str, Any], pointer: str) -> None:
    assert refused(model_type, fields) == pointer
