"""A small Llama's layer: hidden 64, 4 heads and 2 of keys and values of 16, feed-forward 128."""

from dataclasses import replace

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.memory.activations import saved_bytes
from plimsoll.planners.memory.layer_events import (
    NOTHING_SAVED,
    adapter_cast_bytes,
    beside_second_run,
    copied_halves_bytes,
    keeps_input,
    live_at_attention,
    live_at_first_products,
    live_at_last_norm,
    live_at_second_norm,
    saved_with_and_without_input_gradient,
    sums_beside_kept,
)
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import small_llama

KERNELS = load_profile("fsdp2").kernels
LAYER = small_llama().layers[0]


def kept(learning=None):
    return live_at_second_norm(LAYER, KERNELS, attention="flash", element_bytes=2, learning=learning)


def test_at_the_second_norm_the_attention_is_kept_and_nothing_behind_it():
    held = kept()
    # The first norm in fp32 and normalized, with a statistic; the second has 26 bytes a feature of its own.
    assert held.sequence_bytes == 6 * 64 + 4 + 26 * 64
    # Its input gathered; query and context, key and value, and four heads' statistics.
    assert (held.gathered_bytes, held.tensor_bytes) == (2 * 64, 2 * 2 * 64 + 2 * 2 * 32 + 4 * 4)


def test_at_the_attention_its_gradients_meet_all_that_it_keeps():
    held = live_at_attention(LAYER, KERNELS, attention="flash", element_bytes=2, learning=None)
    # The first norm in fp32 and normalized, with a statistic, and the residual's gradient.
    assert held.sequence_bytes == 6 * 64 + 4 + 2 * 64
    # As much for the gradients of query, key, value and context as for themselves; four heads' statistics.
    assert held.tensor_bytes == 2 * (2 * 2 * 64 + 2 * 2 * 32) + 4 * 4
    head = small_llama().head
    assert live_at_attention(head, KERNELS, attention="flash", element_bytes=2, learning=None) == NOTHING_SAVED


def test_a_head_has_no_second_norm():
    head = small_llama().head
    assert live_at_second_norm(head, KERNELS, attention="flash", element_bytes=2, learning=None) == NOTHING_SAVED


def test_at_the_first_products_one_half_is_left_of_kernels_that_work_in_place():
    kernels = load_profile("accelerate", "fused").kernels
    held = live_at_first_products(LAYER, kernels, attention="flash", element_bytes=2, learning=None)
    # The first norm's input, output and statistic; the second's input and output, two gradients and the residual's.
    assert held.sequence_bytes == 2 * 2 * 64 + 4 + 5 * 2 * 64
    # Query and context, key and value, four heads' statistics, and one half of 128.
    assert held.tensor_bytes == 2 * 2 * 64 + 2 * 2 * 32 + 4 * 4 + 2 * 128


def test_an_ungated_layer_with_kernels_for_its_norms_has_one_first_matrix():
    sizes = {"vocab_size": 101, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "resid_pdrop": 0.0}
    layer = describe_config({"model_type": "gpt2", **sizes}, name="small").layers[0]
    held = live_at_first_products(layer, KERNELS, attention="flash", element_bytes=2, learning=None)
    # The first norm's input and two statistics; the second's input and output, a gradient and the residual's.
    assert held.sequence_bytes == 2 * 64 + 8 + 4 * 2 * 64
    # The first norm's output as gathered; query, key, value and context of 64, four heads' statistics, and what the
    # first matrix of 256 wrote.
    assert (held.gathered_bytes, held.tensor_bytes) == (2 * 64, 2 * 4 * 64 + 4 * 4 + 2 * 256)


def test_separate_kernels_and_a_head_have_no_such_moment():
    assert live_at_first_products(LAYER, KERNELS, attention="flash", element_bytes=2, learning=None) == NOTHING_SAVED
    head, kernels = small_llama().head, load_profile("accelerate", "fused").kernels
    assert live_at_first_products(head, kernels, attention="flash", element_bytes=2, learning=None) == NOTHING_SAVED


def test_before_the_first_adapter_nothing_is_kept():
    learning = frozenset({"output_projection"})
    whole, needed = saved_with_and_without_input_gradient(
        LAYER, KERNELS, attention="flash", element_bytes=2, learning=learning
    )
    # The first norm's fp32 input and statistic, query, key and value, and the attention's statistics; its output is
    # the adapter's input.
    assert whole.sequence_bytes - needed.sequence_bytes == 4 * 64 + 4
    assert whole.tensor_bytes - needed.tensor_bytes == 2 * 64 + 2 * 2 * 32 + 4 * 4


def test_behind_an_adapter_of_queries_all_is_kept_but_the_first_norm():
    learning = frozenset({"query_projection"})
    whole, needed = saved_with_and_without_input_gradient(
        LAYER, KERNELS, attention="flash", element_bytes=2, learning=learning
    )
    assert whole.sequence_bytes - needed.sequence_bytes == 4 * 64 + 4
    assert whole.tensor_bytes == needed.tensor_bytes


def test_an_indexer_s_scores_are_not_the_layer_s_attention():
    model = describe_config(dict(catalogue().model("deepseek-ai/DeepSeek-V3.2").config), name="v3.2")
    indexed = model.layers[-1]
    kept = live_at_attention(indexed, KERNELS, attention="flash", element_bytes=2, learning=None)
    # The gradients of query, key, value and output: 128 heads of 192, 192, 128 and 128 features, in 16 bits.
    assert kept.tensor_bytes >= 2 * 128 * (192 + 192 + 128 + 128)


def test_the_last_adapter_s_input_in_fp32_stands_beside_what_its_layer_saves():
    # 128 features in fp32 and 16 bits, and 16-bit tensors of 64: the feed-forward's input, its product, the adapter's
    # and their sum, and the residual, of which the norm keeps a copy in fp32 alone.
    found = adapter_cast_bytes(LAYER, KERNELS, {"feed_forward_product": 1}, 2)
    assert found == 6 * 128 + 5 * 2 * 64
    fused = replace(KERNELS, norm_keeps_fp32=False)
    assert adapter_cast_bytes(LAYER, fused, {"feed_forward_product": 1}, 2) == found - 2 * 64


def test_a_last_matrix_without_an_adapter_has_no_such_event():
    assert adapter_cast_bytes(LAYER, KERNELS, {"attention_input": 3}, 2) == 0


def layer_of(model_type):
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64}
    config = {"model_type": model_type, "vocab_size": 101, "hidden_size": 64, "intermediate_size": 128, **sizes}
    return describe_config(config, name="small").layers[0]


def test_at_the_end_of_a_second_run_the_last_norm_s_output_is_held_uncast():
    # The stream's gradient in fp32, the half's in 16 bits, and the norm's output in fp32.
    assert beside_second_run(LAYER, 2) == (4 + 2 + 4) * 64


def test_norms_after_a_half_leave_the_stream_between_the_halves_unsaved():
    # Both gradients; the norm's output in 16 bits, and the stream in fp32, which only matrices read.
    assert beside_second_run(layer_of("olmo2"), 2) == (4 + 2) * 64 + 2 * 64 + 4 * 64
    assert beside_second_run(small_llama().head, 2) > 0
    assert beside_second_run(replace(LAYER, operations=()), 2) == 0


@pytest.mark.parametrize(
    ("model_type", "framework", "autocast", "expected"),
    [
        ("llama", "fsdp2", False, False),  # the norm saves a copy in fp32
        ("llama", "fsdp2", True, True),  # which is the stream itself
        ("llama", "megatron", False, True),
        ("olmo2", "fsdp2", False, True),  # matrices save it as it is
        ("olmo2", "fsdp2", True, False),  # or casts of it
    ],
)
def test_a_layer_keeps_its_input_where_an_operation_saves_it_uncast(model_type, framework, autocast, expected):
    kernels = load_profile(framework).kernels
    assert keeps_input(layer_of(model_type), kernels, learning=None, autocast=autocast) is expected


def test_a_frozen_matrix_does_not_keep_the_input():
    assert not keeps_input(layer_of("olmo2"), KERNELS, learning=frozenset(), autocast=False)


LIGER = load_profile("accelerate", "fused").kernels


def listed_layer(name):
    return describe_config(dict(catalogue().model(name).config), name=name).layers[-1]


def test_a_norm_behind_the_last_matrix_is_differentiated_beside_all_that_the_layer_saves():
    # Traced: OLMo 2 of 13,540 tokens, 896 features and a feed-forward of 860 has most there, 627 MiB of a layer.
    olmo = listed_layer("allenai/OLMo-2-1124-7B")
    sizes = {"attention": "flash", "element_bytes": 2, "learning": None}
    whole = saved_bytes(olmo, KERNELS, **sizes)
    held = live_at_last_norm(olmo, KERNELS, **sizes)
    # Six tensors in fp32 and a gradient in 16 bits for what it saved, its input in fp32 twice and a statistic.
    assert held.sequence_bytes - whole.sequence_bytes == (6 * 4 + 2 - 2 * 4) * 4096 - 4
    assert held.tensor_bytes == whole.tensor_bytes
    assert live_at_last_norm(LAYER, KERNELS, **sizes) == NOTHING_SAVED


@pytest.mark.parametrize(
    ("name", "kernels", "expected"),
    [
        # Traced: of Phi 3 with 1,381 inner features the product of 2,762 is 43.21 MiB for 8,202 tokens.
        ("microsoft/Phi-3-mini-4k-instruct", LIGER, 2 * 2 * 8192),
        ("microsoft/Phi-3-mini-4k-instruct", KERNELS, 0),
        ("meta-llama/Llama-3.2-1B", LIGER, 0),
    ],
)
def test_halves_of_one_product_are_copied_for_a_kernel_that_works_in_place(name, kernels, expected):
    assert copied_halves_bytes(listed_layer(name), kernels, 2) == expected


@pytest.mark.parametrize(
    ("name", "kernels", "autocast", "expected"),
    [
        # The last product, its sum, and the stream, of which an RMSNorm in separate operations keeps a copy in fp32.
        ("meta-llama/Llama-3.2-1B", KERNELS, False, 3),
        ("meta-llama/Llama-3.2-1B", KERNELS, True, 2),
        ("meta-llama/Llama-3.2-1B", LIGER, False, 2),
        # Traced: Cohere 2 of 58,692 tokens and 2,760 features ends with two products and two sums of 308.97 MiB.
        ("CohereLabs/aya-expanse-8b", KERNELS, False, 4),
    ],
)
def test_a_forward_pass_ends_with_the_last_products_and_sums(name, kernels, autocast, expected):
    assert sums_beside_kept(listed_layer(name), kernels, autocast=autocast) == expected
