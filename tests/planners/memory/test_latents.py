"""DeepSeek V2 Lite: 16 heads of 128 + 64 features, values of 128, keys and values in a latent of 512 + 64."""

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.memory.latents import save_latents, save_normed_latents, weight_bytes
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import llama

KERNELS = load_profile("fsdp2").kernels
LAYER = describe_config(dict(catalogue().model("deepseek-ai/DeepSeek-V2-Lite").config), name="lite").layers[-1]


def kept_of(layer, learning=None):
    kept = {"value": 2.0, "key_value_latent": 2.0}
    save_latents(layer, kept, KERNELS, 2, learning)
    return kept


def test_the_value_keeps_the_keys_that_it_is_beside():
    assert kept_of(LAYER)["value"] == 2 * (128 + 128) / 128


def test_the_latent_s_norm_keeps_fp32_and_the_normalized_of_the_rank_alone():
    assert kept_of(LAYER)["key_value_latent"] == pytest.approx((4 + 2 + 2) * 512 / 576)


def test_a_frozen_norm_keeps_no_normalized_copy_and_a_frozen_router_no_input():
    kept = kept_of(LAYER, frozenset({"query_projection"}))
    assert kept["key_value_latent"] == pytest.approx((4 + 2) * 512 / 576)
    assert set(kept) == {"value", "key_value_latent"}


def test_transformer_engine_s_norm_keeps_a_copy_of_the_rank_beside_its_output():
    kept = {"key_value_latent": 2.0}
    save_normed_latents(LAYER, kept, 2)
    assert kept == {"key_value_latent": pytest.approx((2 + 2) * 512 / 576)}


def test_the_router_s_input_is_kept_in_fp32_besides():
    kept = kept_of(LAYER)
    assert [held for name, held in kept.items() if name not in ("value", "key_value_latent")] == [4.0]


def test_other_attention_is_left_as_it_is():
    assert kept_of(llama().layers[0]) == {"value": 2.0, "key_value_latent": 2.0}


def test_an_indexer_s_weights_are_no_value():
    indexed = describe_config(dict(catalogue().model("deepseek-ai/DeepSeek-V3.2").config), name="v3.2").layers[-1]
    assert [op.name for op in indexed.operations if op.inputs[-1] == "index_weights"] == ["index_scores"]
    kept = kept_of(indexed)
    assert "index_weights" not in kept
    # 128 heads of 128 features of keys without position and as many of values.
    assert kept["value"] == 2 * (128 + 128) / 128


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("deepseek-ai/DeepSeek-V2-Lite", 4),
        ("MiniMaxAI/MiniMax-M2", 4),
        ("mistralai/Mixtral-8x7B-v0.1", 4),
        ("zai-org/GLM-4.5-Air", 4),
        ("Qwen/Qwen3-30B-A3B", 2),
    ],
)
def test_scores_in_fp32_widen_the_outputs_that_they_weigh(model, expected):
    layer = describe_config(dict(catalogue().model(model).config), name="mixture").layers[-1]
    assert weight_bytes(layer, KERNELS, 2) == expected
