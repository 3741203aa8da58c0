"""Models whose layers are not Llama's in the fields of Megatron-Core's configs."""

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.service.worker.stacks.megatron.core.model_fields import has_latents, model_fields, rotary_fraction
from tests.service.worker.cases import job


def fields(model, **changes):
    config = dict(catalogue().model(model).config) | changes
    return model_fields(job(framework="megatron", config=config))


def of(found, *names):
    return tuple(found[name] for name in names)


def test_deepseek_v3_s_latent_attention_has_the_sizes_of_its_config():
    found = fields("deepseek-ai/DeepSeek-V3")
    assert of(found, "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim") == (
        1536, 512, 128, 64, 128,
    )  # fmt: skip
    assert found["qk_layernorm"]


def test_a_rotation_that_nothing_scales_is_yarn_s_by_a_factor_of_one():
    assert of(fields("deepseek-ai/DeepSeek-V3"), "rope_type", "rotary_scaling_factor") == ("yarn", 1.0)
    scaled = fields("deepseek-ai/DeepSeek-V3", rope_scaling={"type": "yarn", "factor": 40})
    assert scaled["rotary_scaling_factor"] == 40


def test_queries_without_a_latent_come_straight_from_the_stream():
    assert fields("moonshotai/Moonlight-16B-A3B")["q_lora_rank"] is None


@pytest.mark.parametrize(
    ("model", "dense"),
    [("deepseek-ai/DeepSeek-V3", 3), ("moonshotai/Kimi-K2-Instruct", 1), ("Qwen/Qwen1.5-MoE-A2.7B", 0)],
)
def test_the_first_layers_have_no_experts(model, dense):
    layers = fields(model)["moe_layer_freq"]
    assert layers == [0] * dense + [1] * (len(layers) - dense)


def test_a_router_that_a_bias_balances_scores_by_a_sigmoid_in_fp32_and_chooses_groups_first():
    found = fields("deepseek-ai/DeepSeek-V3")
    assert of(found, "moe_router_score_function", "moe_router_enable_expert_bias", "moe_router_dtype") == (
        "sigmoid", True, "fp32",
    )  # fmt: skip
    assert of(found, "moe_router_num_groups", "moe_router_group_topk") == (8, 4)
    assert "moe_router_num_groups" not in fields("moonshotai/Kimi-K2-Instruct")


@pytest.mark.parametrize(
    ("model", "is_before"),
    [("deepseek-ai/DeepSeek-V2-Lite", True), ("Qwen/Qwen1.5-MoE-A2.7B", True), ("Qwen/Qwen3-30B-A3B", False)],
)
def test_a_softmax_of_all_experts_comes_before_they_are_chosen(model, is_before):
    found = fields(model)
    assert found["moe_router_pre_softmax"] is is_before
    assert "moe_router_dtype" not in found


def test_shared_experts_are_one_feed_forward_that_a_gate_may_scale():
    # DeepSeek V2 Lite: two of 1,408 features; Qwen 1.5's mixture: one of 5,632.
    names = ("moe_shared_expert_intermediate_size", "moe_shared_expert_gate")
    assert of(fields("deepseek-ai/DeepSeek-V2-Lite"), *names) == (2 * 1408, False)
    assert of(fields("Qwen/Qwen1.5-MoE-A2.7B"), *names) == (5632, True)
    assert of(fields("Qwen/Qwen3-30B-A3B"), *names) == (None, False)


def test_glm_4_5_has_biases_in_its_attention_and_turns_half_of_a_head():
    glm = dict(catalogue().model("zai-org/GLM-4.5-Air").config)
    found = model_fields(job(framework="megatron", config=glm))
    assert of(found, "add_qkv_bias", "qk_layernorm", "ffn_hidden_size", "moe_ffn_hidden_size") == (
        True, False, 10944, 1408,
    )  # fmt: skip
    assert fields("zai-org/GLM-4.5-Air", use_qk_norm=True)["qk_layernorm"]
    half = job(framework="megatron", config=glm | {"partial_rotary_factor": 0.5})
    assert rotary_fraction(half) == 0.5


def test_llama_s_attention_has_no_latents():
    assert not has_latents(job(framework="megatron"))
    assert model_fields(job(framework="megatron"))["num_query_groups"] == 2
