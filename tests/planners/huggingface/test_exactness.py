"""Descriptions equal the modules that transformers builds: every name, every shape, every count.

The modules are built on the meta device, which allocates nothing, from the
config alone, without a network.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from planners.architecture import ModelSpec
from planners.catalogue import CatalogueModel, catalogue
from planners.huggingface import describe_config, known_model_types

pytestmark = pytest.mark.slow

Shapes = Mapping[str, tuple[int, ...]]

# Small sizes in which no two dimensions are equal, so that a transposed or swapped shape shows.
SMALL: Mapping[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    # Their config classes' defaults lie beyond a small vocabulary.
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LATENT: Mapping[str, Any] = {
    "num_key_value_heads": 8,
    "kv_lora_rank": 24,
    "q_lora_rank": 40,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
GPT2: Mapping[str, Any] = {"vocab_size": 131, "n_embd": 64, "n_layer": 3, "n_head": 8, "n_positions": 96}

MAMBA: Mapping[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "state_size": 12,
    "conv_kernel": 3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MAMBA2: Mapping[str, Any] = {**MAMBA, "num_heads": 8, "head_dim": 16, "n_groups": 2}

# Further configs that walk down every branch of a family's reader.
VARIANTS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "llama": (
        SMALL,
        {**SMALL, "tie_word_embeddings": True, "head_dim": 12},
        {**SMALL, "attention_bias": True, "mlp_bias": True},
    ),
    "mistral": (SMALL, {**SMALL, "head_dim": 12, "sliding_window": 32}),
    "qwen2": (SMALL, {**SMALL, "tie_word_embeddings": True, "use_sliding_window": True, "max_window_layers": 1}),
    "qwen3": (SMALL, {**SMALL, "head_dim": 12, "tie_word_embeddings": True}, {**SMALL, "attention_bias": True}),
    "gpt2": (GPT2, {**GPT2, "n_inner": 88}, {**GPT2, "tie_word_embeddings": False}),
    "deepseek_v2": ({**SMALL, **LATENT}, {**SMALL, **LATENT, "q_lora_rank": None}),
    "deepseek_v3": ({**SMALL, **LATENT}, {**SMALL, **LATENT, "attention_bias": True}),
    "mamba": (MAMBA, {**MAMBA, "use_bias": True, "time_step_rank": 7}, {**MAMBA, "use_conv_bias": False}),
    "mamba2": (MAMBA2, {**MAMBA2, "use_bias": True, "tie_word_embeddings": True}),
    "starcoder2": (SMALL, {**SMALL, "use_bias": False}),
    "stablelm": (SMALL, {**SMALL, "use_qkv_bias": True}, {**SMALL, "use_parallel_residual": True}),
    "cohere": (SMALL, {**SMALL, "use_qk_norm": True}, {**SMALL, "attention_bias": True}),
    "phi": (SMALL, {**SMALL, "tie_word_embeddings": True}),
    "glm": (SMALL, {**SMALL, "attention_bias": False}),
    "glm4": (SMALL, {**SMALL, "attention_bias": False}),
    "granite": (SMALL, {**SMALL, "attention_bias": True, "mlp_bias": True}),
    "olmo": (SMALL, {**SMALL, "attention_bias": True}),
    "olmo2": (SMALL, {**SMALL, "attention_bias": True}),
    "olmo3": (SMALL,),
    "nemotron": (SMALL, {**SMALL, "attention_bias": True, "mlp_bias": True}),
    "cohere2": (SMALL, {**SMALL, "attention_bias": True}),
}
# Types whose checkpoints need code of their own: transformers has no module for them.
WITHOUT_A_MODULE = frozenset({"kimi_k2"})


@cache
def built_shapes(config_json: str) -> tuple[Shapes, int]:
    """Return every parameter of the module, tied ones once, and their total."""
    fields = json.loads(config_json)
    model_type = fields.pop("model_type")
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **fields))
    shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    return shapes, sum(math.prod(shape) for shape in shapes.values())


def described_shapes(spec: ModelSpec) -> Shapes:
    """Return the description's parameters under the names that they have in memory.

    On disk each expert has tensors of its own; in memory transformers 5 stacks
    them, gate over up, into one tensor with the expert in front.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    experts: dict[str, dict[str, list[tuple[int, ...]]]] = defaultdict(lambda: defaultdict(list))
    for name, weight in spec.named_weights():
        if weight.is_buffer:
            continue
        expert = re.fullmatch(r"(.+\.experts)\.\d+\.(\w+)\.weight", name)
        if expert is None:
            shapes[name] = weight.shape
        else:
            experts[expert[1]][expert[2]].append(weight.shape)
    for prefix, matrices in experts.items():
        gate, down = matrices["gate_proj"], matrices["down_proj"]
        assert matrices["up_proj"] == gate
        shapes[f"{prefix}.gate_up_proj"] = (len(gate), 2 * gate[0][0], gate[0][1])
        shapes[f"{prefix}.down_proj"] = (len(down), *down[0])
    return shapes


def trainable_parameters(spec: ModelSpec) -> int:
    """Return the parameters without the buffers that a checkpoint holds beside them."""
    return spec.parameters - sum(weight.elements for _, weight in spec.named_weights() if weight.is_buffer)


def parameters_key(model: CatalogueModel) -> str:
    """Return the part of the config that decides the parameters, so that models alike are built once."""
    without_weights = {"architectures", "rope_theta", "rope_scaling", "max_position_embeddings", "sliding_window"}
    return json.dumps({key: model.config[key] for key in sorted(model.config) if key not in without_weights})


@pytest.mark.parametrize("model", catalogue().models, ids=lambda model: model.id)
def test_a_catalogue_model_is_described_exactly(model: CatalogueModel) -> None:
    spec = describe_config(model.config, name=model.id)
    shapes, total = built_shapes(parameters_key(model))
    assert described_shapes(spec) == shapes
    assert trainable_parameters(spec) == total


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mistral-7b", "qwen2.5-7b", "qwen3-8b", "gpt2"])
def test_the_whole_published_config_builds_the_same_module(name: str) -> None:
    config = catalogue().model(name).config
    shapes, _ = built_shapes(json.dumps(config))
    assert described_shapes(describe_config(config, name=name)) == shapes


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        pytest.param(model_type, fields, id=f"{model_type}-{number}")
        for model_type, variants in VARIANTS.items()
        for number, fields in enumerate(variants)
    ],
)
def test_every_branch_of_a_familys_reader_is_exact(model_type: str, fields: Mapping[str, Any]) -> None:
    config = {"model_type": model_type, **fields}
    spec = describe_config(config, name="small")
    shapes, total = built_shapes(json.dumps(config))
    assert described_shapes(spec) == shapes
    assert trainable_parameters(spec) == total


@pytest.mark.parametrize(
    ("fields", "flags"),
    [
        ({}, {"model_type": "qwen2"}),
        ({"sliding_window": 32, "use_sliding_window": True}, {"model_type": "qwen2"}),
        ({"sliding_window": 32, "use_sliding_window": True, "max_window_layers": 1}, {"model_type": "qwen3"}),
        ({"sliding_window": 32, "use_sliding_window": False, "max_window_layers": 0}, {"model_type": "qwen3"}),
    ],
)
def test_the_windows_are_on_the_layers_where_transformers_puts_them(
    fields: Mapping[str, Any], flags: Mapping[str, Any]
) -> None:
    config = {**SMALL, **flags, **fields}
    spec = describe_config(config, name="small")
    windows = {layer: block.kv.window for block in spec.layers if block.kv for layer in block.layers}
    types = AutoConfig.for_model(**config).layer_types
    assert [windows[layer] for layer in range(3)] == [32 if kind == "sliding_attention" else None for kind in types]


def test_without_a_window_given_mistral_slides_over_its_config_classs_own() -> None:
    config = {"model_type": "mistral", **SMALL}
    spec = describe_config(config, name="small")
    assert {block.kv.window for block in spec.layers if block.kv} == {AutoConfig.for_model(**config).sliding_window}


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "starcoder2", "glm", "granite"])
def test_left_out_key_value_heads_are_the_config_classs_own(model_type: str) -> None:
    config = {"model_type": model_type, **SMALL, "num_attention_heads": 32}
    del config["num_key_value_heads"]
    spec = describe_config(config, name="small")
    defaulted = AutoConfig.for_model(**config).num_key_value_heads
    assert spec.key_value_heads == (32 if defaulted is None else defaulted)


def test_key_value_heads_of_null_are_as_many_as_query_heads() -> None:
    config = {"model_type": "mistral", **SMALL, "num_key_value_heads": None}
    assert describe_config(config, name="small").key_value_heads == 8


def test_every_known_type_is_compared_or_listed_as_having_no_module() -> None:
    assert set(known_model_types()) == set(VARIANTS) | WITHOUT_A_MODULE
