"""A small Llama's layer: hidden 64, 4 heads and 2 of keys and values of 16, feed-forward 128."""

from dataclasses import replace

import pytest

from plimsoll.planners.architecture import OperationKind
from plimsoll.planners.memory.activations import saved_bytes
from plimsoll.planners.memory.eager_attention import (
    attentions_of,
    has_scores,
    kept_score_bytes,
    mask_bytes,
    returned_score_bytes,
    softmax_backward_bytes,
)
from plimsoll.planners.memory.layer_events import live_at_attention
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import small_llama

KERNELS = load_profile("fsdp2").kernels
LAYER = small_llama().layers[0]
(ATTENTION,) = attentions_of(LAYER)


def kept(attention, learning=None):
    return saved_bytes(LAYER, KERNELS, attention=attention, element_bytes=2, learning=learning)


def test_llama_keeps_the_softmax_in_fp32_and_again_in_sixteen_bits():
    assert kept_score_bytes(ATTENTION, 2) == 4 + 2
    # In fp32 the softmax's result is what the product with the values is given.
    assert kept_score_bytes(ATTENTION, 4) == 4
    assert kept("eager").score_bytes == 4 * 6


def test_gemma_2_keeps_the_hyperbolic_tangent_as_well():
    capped = replace(ATTENTION, caps_scores=True)
    assert kept_score_bytes(capped, 2) == 4 + 2 + 2
    assert softmax_backward_bytes(capped, 2) == 3 * 4 + 2


def test_gpt_2_keeps_sixteen_bits_a_mask_and_what_is_not_dropped():
    own = replace(ATTENTION, drops_out=True, softmax_in_fp32=False)
    assert kept_score_bytes(own, 2) == 2 + 1 + 2
    assert softmax_backward_bytes(own, 2) == 3 * 2
    assert kept_score_bytes(replace(own, drops_out=False), 2) == 2


def test_autocast_runs_every_softmax_in_fp32():
    own = replace(ATTENTION, drops_out=True, softmax_in_fp32=False)
    # The softmax in fp32, the mask, and what is not dropped as the product with the values casts it.
    assert kept_score_bytes(own, 2, autocast=True) == 4 + 1 + 2
    layer = replace(
        LAYER, operations=tuple(own if op.kind is OperationKind.ATTENTION else op for op in LAYER.operations)
    )
    held = {
        autocast: saved_bytes(layer, KERNELS, attention="eager", element_bytes=2, autocast=autocast).score_bytes
        for autocast in (False, True)
    }
    assert held == {False: 4 * 5, True: 4 * 7}


def test_keys_and_values_are_kept_as_often_as_query_heads_share_them():
    # Flash keeps queries and context of 64 each, keys and values of 32 each, and four heads' statistics.
    assert kept("flash").tensor_bytes - kept("eager").tensor_bytes == 4 * 4 - 2 * 2 * (64 - 32)


def test_the_kernel_of_32_bits_shares_no_heads_and_its_output_is_not_copied():
    held = saved_bytes(LAYER, KERNELS, attention="flash", element_bytes=4)
    # Queries, keys, values and context of 64 each, the gate twice, the other half and the product of 128 each.
    assert held.tensor_bytes == 4 * (4 * 64 + 4 * 128) + 4 * 4


def test_without_a_next_matrix_that_learns_the_output_is_not_kept():
    frozen = frozenset({"feed_forward_gate"})
    heads = 2 * (64 + 2 * 64)
    # Beside queries, keys and values the gate before and after its activation, and the other half, 128 each.
    assert kept("eager", frozen).tensor_bytes == heads + 3 * 2 * 128


def test_at_the_softmax_three_fp32_tensors_of_scores_meet():
    held = live_at_attention(LAYER, KERNELS, attention="eager", element_bytes=2, learning=None)
    assert held.score_bytes == 4 * 3 * 4
    # Queries, keys as often as they are shared, and as much for the gradient of the values.
    assert held.tensor_bytes == 2 * 3 * 64
    # The first norm in fp32 and normalized, with a statistic, and the residual's gradient.
    assert held.sequence_bytes == 6 * 64 + 4 + 2 * 64


def test_the_mask_is_one_for_all_heads_and_what_comes_back_one_for_each():
    said = {"attention": "eager", "element_bytes": 2}
    assert mask_bytes(LAYER, KERNELS, **said) == 2
    assert returned_score_bytes(LAYER, KERNELS, **said) == 4 * 2


@pytest.mark.parametrize(
    ("attention", "framework"), [("flash", "fsdp2"), ("eager", "megatron"), ("eager", "reference")]
)
def test_flash_attention_and_other_stacks_have_no_scores_of_transformers(attention, framework):
    kernels = load_profile(framework).kernels
    assert not has_scores(attention, kernels)
    said = {"attention": attention, "element_bytes": 2}
    assert (mask_bytes(LAYER, kernels, **said), returned_score_bytes(LAYER, kernels, **said)) == (0, 0)


def test_a_layer_without_attention_has_no_mask():
    without = replace(LAYER, operations=tuple(op for op in LAYER.operations if op.kind is not OperationKind.ATTENTION))
    assert mask_bytes(without, KERNELS, attention="eager", element_bytes=2) == 0
