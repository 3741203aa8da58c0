"""DeepSeek V3 and after: counts, the indexers of sparse attention, and which layers have one."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from plimsoll.planners.architecture import KvKind, ModelSpec
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidModelConfig
from tests.planners.families.small_mixtures import SPARSE


def published(name: str) -> ModelSpec:
    return describe_config(catalogue().model(name).config, name=name)


def small(model_type: str = "glm_moe_dsa", **fields: Any) -> ModelSpec:
    return describe_config({"model_type": model_type, **SPARSE, **fields}, name="small")


def indexed_layers(spec: ModelSpec) -> set[int]:
    return {layer for block in spec.layers if block.kv and block.kv.index_width for layer in block.layers}


def test_deepseek_v3_has_671_billion_parameters_of_which_37_work_on_a_token() -> None:
    spec = published("deepseek-ai/DeepSeek-V3")
    # DeepSeek-V3, arXiv:2412.19437: 671 and 37 billion, the looked-up embedding (129,280 x 7,168) not counted active.
    assert round(spec.parameters / 1e9) == 671
    assert round((spec.active_parameters - 129_280 * 7168) / 1e9) == 37
    # 512 of latent and 64 of rotary key a token and layer.
    assert sum(block.kv.elements_per_token * block.repeats for block in spec.layers if block.kv) == 61 * 576


def test_an_indexer_adds_its_weights_and_its_key_to_every_layer() -> None:
    sparse, dense = published("deepseek-ai/DeepSeek-V3.2"), published("deepseek-ai/DeepSeek-V3")
    # A layer: queries 64 x 128 x 1,536, key 128 x 7,168, weights 64 x 7,168, norm 256 = 13,959,424.
    assert sparse.parameters - dense.parameters == 61 * 13_959_424
    assert {block.kv.index_width for block in sparse.layers if block.kv} == {128}
    assert {block.kv.kind for block in sparse.layers if block.kv} == {KvKind.LATENT}


def test_glm_5_2_has_an_indexer_in_every_fourth_layer_and_the_first_three() -> None:
    # Layers 0, 1, 2 and then 6, 10, ... 74.
    assert indexed_layers(published("zai-org/GLM-5.2")) == {0, 1, *range(2, 78, 4)}


def test_glm_4_7_flash_has_30_billion_parameters_and_one_dense_layer() -> None:
    spec = published("zai-org/GLM-4.7-Flash")
    # 30B-A3B is the name that its trainers' scripts give it (THUDM/slime).
    assert round(spec.parameters / 1e9) == 30
    dense, sparse = spec.layers
    assert (dense.layers, sparse.layers) == ((0,), tuple(range(1, 47)))
    # 512 of latent and 64 of rotary key a token and layer; no indexer.
    assert sum(block.kv.elements_per_token * block.repeats for block in spec.layers if block.kv) == 47 * 576
    assert not indexed_layers(spec)


def test_glm_4_7_flash_names_its_dense_layers() -> None:
    spec = small("glm4_moe_lite", mlp_layer_types=["dense", "sparse", "dense"])
    assert [block.layers for block in spec.layers] == [(0, 2), (1,)]
    with pytest.raises(InvalidModelConfig, match="names 1 layers of 3"):
        small("glm4_moe_lite", mlp_layer_types=["dense"])


@pytest.mark.parametrize(
    ("fields", "indexed"),
    [
        ({}, {0, 1, 2}),
        ({"indexer_types": ["full", "shared", "shared"]}, {0}),
        ({"index_topk_pattern": "FSF"}, {0, 2}),
        ({"num_hidden_layers": 7, "index_topk_freq": 3, "index_skip_topk_offset": 2}, {0, 1, 4}),
    ],
)
def test_the_indexers_stand_where_the_config_puts_them(fields: dict[str, Any], indexed: set[int]) -> None:
    assert indexed_layers(small(**fields)) == indexed


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"indexer_types": ["full"]}, "indexer_types"),
        ({"indexer_types": ["full", "none", "full"]}, "indexer_types"),
        ({"indexer_types": ["shared", "full", "full"]}, "indexer_types"),
        ({"index_topk_pattern": "FS"}, "index_topk_pattern"),
        ({"index_topk_pattern": "FXF"}, "index_topk_pattern"),
        ({"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types"),
        ({"q_lora_rank": None}, "q_lora_rank"),
        ({"moe_layer_freq": 2}, "moe_layer_freq"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(fields: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        small(**fields)
    assert caught.value.pointer == f"/model/config/{key}"


@pytest.mark.parametrize("model_type", ["deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa"])
def test_a_left_out_query_rank_is_the_config_classs_own(model_type: str) -> None:
    config = {key: value for key, value in SPARSE.items() if key != "q_lora_rank"}
    spec = describe_config({"model_type": model_type, **config}, name="small")
    rank = AutoConfig.for_model(model_type, **config).q_lora_rank
    assert any(tensor.name == "query_latent" and tensor.width == rank for tensor in spec.layers[0].tensors)


def test_kimi_k2_is_built_as_a_deepseek_v3() -> None:
    config = json.loads(json.dumps(dict(catalogue().model("moonshotai/Kimi-K2-Instruct").config)))
    spec = describe_config(config, name="kimi")
    fields = {key: value for key, value in config.items() if key not in ("model_type", "architectures")}
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(AutoConfig.for_model("deepseek_v3", **fields))
    buffers = sum(weight.elements for _, weight in spec.named_weights() if weight.is_buffer)
    assert spec.parameters - buffers == sum(parameter.numel() for parameter in module.parameters())
