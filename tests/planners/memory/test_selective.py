from dataclasses import replace

from plimsoll.planners.families import describe_config
from plimsoll.planners.memory.activations import saved_bytes
from plimsoll.planners.memory.selective import (
    exchanged_bytes,
    not_recomputed_bytes,
    scattered_bytes,
    selectively_saved_bytes,
)
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import gpt, llama

REFERENCE, FSDP2 = load_profile("reference").kernels, load_profile("fsdp2").kernels
COMPILED = load_profile("fsdp2", "compiled").kernels
H, F = 4096, 14336
SIZES = {
    "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip
SCORES, ALTERNATE = "attention_scores", "alternate_matmuls"


def kept(model_type, *, adds_biases_apart=False):
    layer = describe_config({"model_type": model_type, **SIZES}, name="small").layers[0]
    found = selectively_saved_bytes(
        layer, FSDP2, policy=ALTERNATE, attention="flash", element_bytes=2, adds_biases_apart=adds_biases_apart
    )
    # Less the layer's input of 64 features, the attention's output and four heads' statistics.
    return found.gathered_bytes + found.sequence_bytes - 2 * 64, found.tensor_bytes - 2 * 64 - 4 * 4


def test_selective_recompute_throws_the_scores_away():
    layer = gpt().layers[0]
    found = selectively_saved_bytes(layer, REFERENCE, policy=SCORES, attention="eager", element_bytes=2)
    assert found.score_bytes == 0
    assert found.sequence_bytes + found.tensor_bytes == 34 * H


def test_alternate_products_keep_query_value_gate_and_down():
    # Input and down 2h each; query, context nq, value kv, gate f in 2 bytes, and the attention's statistic.
    found = selectively_saved_bytes(llama().layers[0], FSDP2, policy=ALTERNATE, attention="flash", element_bytes=2)
    # Down's product is a part of a sum, as long on every rank.
    assert (found.sequence_bytes, found.gathered_bytes) == (2 * H, 2 * H)
    assert found.tensor_bytes == 2 * (H + H + 1024 + F) + 4 * 32


def test_products_with_a_bias_are_neither_counted_nor_kept():
    # Qwen 2's query, key and value have one: the first plain product is the output's, the third up's.
    assert kept("qwen2") == (2 * 64, 2 * 128)
    # StarCoder 2's all have one.
    assert kept("starcoder2") == (0, 0)


def test_products_in_fp8_add_their_biases_apart_and_are_counted():
    # Query, value, gate and down, as without biases: torchao adds them to the product.
    assert kept("qwen2", adds_biases_apart=True) == (2 * 64, 2 * (64 + 32 + 128))


def test_matrices_that_are_one_are_multiplied_by_at_once():
    # Phi 3's first product makes query, key and value, 64 + 32 + 32; its third gate and up, 128 each.
    assert kept("phi3") == (0, 2 * (128 + 256))


def test_no_policy_keeps_everything():
    layer = llama().layers[0]
    everything = saved_bytes(layer, FSDP2, attention="flash", element_bytes=2)
    same = selectively_saved_bytes(layer, FSDP2, policy="none", attention="flash", element_bytes=2)
    assert same == everything


def test_scattered_sums_of_both_halves_are_kept_where_torchtitan_chooses():
    layer = llama().layers[0]
    assert scattered_bytes(layer, FSDP2, policy=ALTERNATE, element_bytes=2) == 2 * 2 * H
    assert scattered_bytes(layer, FSDP2, policy=SCORES, element_bytes=2) == 0
    # Compiled the last is not: no gradient needs it.
    assert scattered_bytes(layer, COMPILED, policy=ALTERNATE, element_bytes=2) == 2 * H


def test_compiled_the_last_product_is_not_kept_though_the_list_names_it():
    # Query, value, gate and down are the first, third, fifth and seventh product, of 64, 32, 128 and 64 features.
    layer = llama().layers[0]
    eager, compiled = (
        selectively_saved_bytes(layer, kernels, policy=ALTERNATE, attention="flash", element_bytes=2)
        for kernels in (FSDP2, COMPILED)
    )
    assert eager.gathered_bytes - compiled.gathered_bytes == 2 * H
    assert replace(eager, gathered_bytes=0.0) == replace(compiled, gathered_bytes=0.0)
    assert not_recomputed_bytes(layer, COMPILED, policy=ALTERNATE, element_bytes=2) == (0, 0)
    assert not_recomputed_bytes(layer, FSDP2, policy=ALTERNATE, element_bytes=2) == (2 * H, 2 * H)


def mixture(**changes):
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32}
    return describe_config({"model_type": "mixtral", **SIZES, **experts, **changes}, name="small").layers[0]


def test_neither_a_router_s_nor_experts_products_are_kept_or_counted():
    found = selectively_saved_bytes(mixture(), FSDP2, policy=ALTERNATE, attention="flash", element_bytes=2)
    # Of q, k, v, o the first and the third: 64 and 32 features; the attention's output of 64 and 4 heads' statistics.
    assert found.tensor_bytes == 2 * (64 + 32 + 64) + 4 * 4
    assert (found.gathered_bytes, found.dispatched_bytes, found.expert_bytes) == (0, 0, 0)


def test_tokens_that_other_ranks_sent_are_kept_as_they_come_and_as_they_return():
    # Two experts' copies of 64 features each way.
    assert exchanged_bytes(mixture(), policy=ALTERNATE, element_bytes=2) == 2 * 2 * 2 * 64
    assert exchanged_bytes(mixture(), policy=SCORES, element_bytes=2) == 0
    assert exchanged_bytes(gpt().layers[0], policy=ALTERNATE, element_bytes=2) == 0


def test_a_bias_of_queries_says_nothing_of_shared_experts():
    shared = {
        "model_type": "qwen2_moe", **SIZES, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 96,
    }  # fmt: skip
    layer = describe_config(shared, name="small").layers[0]
    found = selectively_saved_bytes(layer, FSDP2, policy=ALTERNATE, attention="flash", element_bytes=2)
    # q, k and v have biases: of o, gate, up, down and the gate's score the first, the third and the fifth.
    assert found.tensor_bytes == 2 * (96 + 64) + 4 * 4


def test_a_product_of_keys_and_values_at_once_is_saved_as_wide_as_it_is():
    sizes = {"q_lora_rank": None, "kv_lora_rank": 8, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    dense = {"first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = {"model_type": "deepseek_v3", **SIZES, **sizes, **dense, "num_key_value_heads": 4, "n_shared_experts": 1}
    layer = describe_config(config, name="small").layers[0]
    found = selectively_saved_bytes(layer, FSDP2, policy=ALTERNATE, attention="flash", element_bytes=2)
    # q, latent, keys and values, o, gate, up, down: the first, the third and the fifth, of 4 heads' 16 + 8 and 16 + 16
    # and of 128; keys alone would be 4 x 24. Attention's output of 4 x 16, and 4 heads' statistics.
    assert found.tensor_bytes == 2 * (4 * 24 + 4 * 32 + 128 + 4 * 16) + 4 * 4
