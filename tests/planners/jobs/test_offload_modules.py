"""Parts of layers that send what they keep to the host: which tensors, how often, and which leave the device."""

import pytest

from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.jobs.offload_modules import (
    OFFLOAD_MODULES,
    back_at_attention,
    check_offload_modules,
    modules_worth_sending,
    sent_by,
)
from tests.planners.factories import small_llama, small_mixtral

DENSE = small_llama()  # 64 features, 4 query and 2 key-value heads of 16
# Latent attention: queries and keys of 16 + 8 a head, values of 16; experts in every layer.
LATENTS = describe_config(
    {
        "model_type": "deepseek_v3", "vocab_size": 101, "hidden_size": 64, "intermediate_size": 176,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128,
        "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
        "first_k_dense_replace": 0, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
        "moe_intermediate_size": 48, "n_group": 1, "topk_group": 1,
    },
    name="latents",
)  # fmt: skip


def sent(model, *modules, recomputed=()):
    """Return (tensor, features, times, freed) of what a model's last layer sends."""
    found = sent_by(ByIdentity(model.layers[-1]), modules, recomputed)
    return [(each.name, each.features, each.times, each.freed) for each in found]


def test_queries_keys_and_values_are_made_of_the_norm_s_input_and_output_where_both_are_one_module():
    assert sent(DENSE, "qkv_linear") == [("residual", 64, 1, 1), ("attention_input", 64, 1, 1)]


def test_attention_sends_its_operands_its_output_which_stays_and_a_statistic_of_each_head():
    assert sent(DENSE, "core_attn") == [
        ("query", 64, 1, 1),
        ("key", 32, 1, 1),
        ("value", 32, 1, 1),
        ("attention_context", 64, 1, 0),
        ("attention_context", 4, 1, 1),
    ]


def test_the_output_s_projection_sends_the_same_output_again_which_leaves():
    assert sent(DENSE, "attn_proj") == [("attention_context", 64, 1, 1)]


@pytest.mark.parametrize("module", ["attn_norm", "mlp_norm", "expert_fc1", "moe_act"])
def test_a_dense_layer_has_no_norm_of_its_own_and_no_expert(module):
    assert sent(DENSE, module) == []


def test_experts_send_the_tokens_they_get_and_both_halves_of_their_product():
    # Two experts a token of 64 features, and 128 features of each half.
    model = small_mixtral()
    (tokens,) = sent(model, "expert_fc1")
    (halves,) = sent(model, "moe_act")
    widths = {tensor.name: tensor.width for tensor in model.layers[-1].tensors}
    assert tokens == ("dispatched", 2 * 64, 1, 1)
    assert halves == ("expert_gate", 2 * widths["expert_gate"], 1, 1)


def test_latents_are_sent_before_and_behind_their_norms_and_the_input_for_each_of_two_products():
    # 64 features, 32 of the queries' latent, 16 of the keys' and values'.
    assert sent(LATENTS, "qkv_linear") == [
        ("attention_input", 64, 2, 1),
        ("query_latent", 32, 2, 2),
        ("key_value_latent", 16, 2, 2),
    ]
    assert sent(LATENTS, "attn_norm") == [("residual", 64, 1, 1)]


def test_latents_are_sent_once_and_operands_leave_nothing_where_up_projections_are_recomputed():
    recomputed = ("mla_up_proj",)
    assert sent(LATENTS, "qkv_linear", recomputed=recomputed)[1:] == [
        ("query_latent", 32, 1, 1),
        ("key_value_latent", 16, 1, 1),
    ]
    operands = sent(LATENTS, "core_attn", recomputed=recomputed)[:3]
    assert [(times, freed) for _, _, times, freed in operands] == [(1, 0)] * 3


def test_an_attention_that_is_recomputed_sends_nothing():
    assert sent(DENSE, "core_attn", recomputed=("core_attn",)) == []


def test_parts_come_back_in_the_opposite_order_one_for_each_that_has_been_differentiated():
    # Before its attention a mixture's layer with latents is through moe_act, expert_fc1, mlp_norm and attn_proj.
    back = back_at_attention(LATENTS.layers[-1], OFFLOAD_MODULES)
    assert back == ("mlp_norm", "moe_act", "expert_fc1", "attn_norm")
    assert back_at_attention(DENSE.layers[-1], OFFLOAD_MODULES) == ("attn_proj",)
    assert back_at_attention(DENSE.layers[-1], ("core_attn",)) == ()


@pytest.mark.parametrize(
    ("model", "recomputed", "worth"),
    [
        (DENSE, (), ("qkv_linear", "core_attn", "attn_proj")),
        (LATENTS, (), OFFLOAD_MODULES),
        # Of 2 x 64 + 32 + 16 features 48 leave, and of attention's operands none.
        (LATENTS, ("layernorm", "mla_up_proj"), ("attn_norm", "expert_fc1", "moe_act", "mlp_norm")),
        (LATENTS, ("moe",), ("qkv_linear", "core_attn", "attn_proj", "attn_norm", "mlp_norm")),
    ],
)
def test_parts_are_worth_sending_that_free_half_of_what_they_send(model, recomputed, worth):
    assert modules_worth_sending(ByIdentity(model), recomputed) == worth


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        (("attn_proj",), "Add core_attn."),
        (("mlp",), "'mlp' is not one of qkv_linear, core_attn"),
        (("core_atn",), r"Did you mean 'core_attn'\?"),
        (("expert_fc1", "moe_act"), "No layer of small-llama has expert_fc1 or moe_act.$"),
        (
            ("attn_norm",),
            (
                "In the layers of small-llama attn_norm is one module with the matrix behind it, and its input goes "
                "with qkv_linear. Name qkv_linear in place of attn_norm.$"
            ),
        ),
        (("mlp_norm",), "mlp_norm is one module with the matrix behind it, .* stays on the device. Leave it out.$"),
        (("mlp_norm", "moe_act"), "^No layer of small-llama has moe_act. In the layers of small-llama mlp_norm is"),
    ],
)
def test_what_no_layer_can_send_is_refused(modules, words):
    with pytest.raises(InvalidQuestion, match=words) as refusal:
        check_offload_modules(modules, DENSE)
    assert refusal.value.pointer == "/training/activation_offload/modules"
