"""Descriptions beside modules: each family's own names, and what is still refuted."""

import dataclasses

import pytest

from plimsoll.planners.families import describe_config
from plimsoll.service.worker.proofs.count.comparison import compare, weight_differences
from plimsoll.service.worker.proofs.count.module import whole_module
from tests.planners.families.small_hybrids import HYBRID_VARIANTS
from tests.planners.families.small_mixtures import MIXTURE_VARIANTS
from tests.service.worker.cases import LATENT

LLAMA = MIXTURE_VARIANTS["mixtral"][0]
GEMMA3 = {
    "mm_tokens_per_image": 4,
    "text_config": {"model_type": "gemma3_text", **LLAMA},
    "vision_config": {
        "model_type": "siglip_vision_model", "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 2,
        "num_attention_heads": 4, "image_size": 56, "patch_size": 14, "vision_use_head": False,
    },
}  # fmt: skip
STACKED = (
    "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "phimoe", "glm4_moe", "minimax_m2", "llama4", "gpt_oss",
)  # fmt: skip
FAMILIES = {
    **{model_type: MIXTURE_VARIANTS[model_type][0] for model_type in STACKED},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "qwen3_next": HYBRID_VARIANTS["qwen3_next"][0],
    "gemma3": GEMMA3,
}


def described_and_built(model_type):
    values = {**FAMILIES[model_type], "model_type": model_type}
    return describe_config(values, name="small"), whole_module(values)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_family_whose_names_the_loader_converts_agrees_to_the_last_weight(model_type):
    spec, module = described_and_built(model_type)
    comparison = compare(spec, module)
    assert (comparison.differences, comparison.built_elements) == ([], spec.parameters)


@pytest.mark.parametrize("model_type", ["mixtral", "gemma3", "minimax_m2"])
def test_a_wrong_shape_is_found_under_other_names_too(model_type):
    spec, module = described_and_built(model_type)
    block, *others = spec.layers
    weight, *rest = block.weights
    wrong = dataclasses.replace(weight, shape=(weight.shape[0] + 1, *weight.shape[1:]))
    layers = (dataclasses.replace(block, weights=(wrong, *rest)), *others)
    assert compare(dataclasses.replace(spec, layers=layers), module).differences


def test_experts_of_another_width_are_found_in_the_stacked_tensor():
    fields = {"model_type": "mixtral", **FAMILIES["mixtral"]}
    spec = describe_config({**fields, "intermediate_size": fields["intermediate_size"] + 8}, name="small")
    differences = compare(spec, whole_module(fields)).differences
    # Hidden 64: 2 x 96 rows of gate and up beside 2 x 88.
    assert {
        "name": "model.layers.0.mlp.experts.gate_up_proj", "planned_shape": [4, 192, 64], "built_shape": [4, 176, 64],
    } in differences  # fmt: skip


def test_differences_name_the_tensor_and_both_shapes():
    differences = weight_differences({"a": (2, 3), "b": (4,)}, {"a": (3, 2), "c": (5,)})
    assert differences == [
        {"name": "a", "planned_shape": [2, 3], "built_shape": [3, 2]},
        {"name": "b", "planned_shape": [4], "built_shape": None},
        {"name": "c", "planned_shape": None, "built_shape": [5]},
    ]
