"""Scores of Megatron-Core's attention, worked out by hand for layers of 4 heads of 16 features and 64 hidden ones."""

import numpy as np
import pytest

from plimsoll.planners.catalogue.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.layouts.candidates import SELECTIVE
from plimsoll.planners.memory.activations import saved_bytes
from plimsoll.planners.memory.layer_events import live_at_attention, live_at_plain_softmax
from plimsoll.planners.memory.selective import selectively_saved_bytes
from plimsoll.planners.memory.unfused_attention import lacks_kernel, save_operands, unrotated_bytes
from plimsoll.planners.questions import Recompute
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import small_llama
from tests.planners.training_cases import asked, one_layout

KERNELS = load_profile("megatron").kernels
ALONE = small_llama(num_attention_heads=4, num_key_value_heads=4)
SHARED = small_llama(num_attention_heads=4, num_key_value_heads=2)


def kept(model, *, size=2, attention="eager"):
    return saved_bytes(model.layers[0], KERNELS, attention=attention, element_bytes=size)


def attention_of(model):
    return next(operation for operation in model.layers[0].operations if operation.heads)


@pytest.mark.parametrize(
    ("length", "micro_batch", "tensor", "size", "expected"),
    [
        (1024, 1, 1, 2, False),
        (1020, 1, 1, 2, True),
        (16, 1, 1, 2, True),
        (24, 1, 1, 2, False),
        (16384, 1, 1, 2, True),
        # Two heads a rank are four of two sequences.
        (1024, 1, 2, 2, True),
        (1024, 2, 2, 2, False),
        (1024, 1, 1, 4, True),
    ],
)
def test_the_softmax_is_one_kernel_over_16_bits_of_whole_eighths_and_fours_of_heads(
    length, micro_batch, tensor, size, expected
):
    layouts = one_layout(micro_batch_size=micro_batch, tensor_parallel=tensor)
    assert np.all(lacks_kernel(layouts, 4, length, size) == expected)


def test_values_that_no_heads_share_are_a_view_of_the_product_with_queries_and_keys():
    # Flash keeps queries, keys and values of 64 features; here unrotated queries and keys besides.
    assert kept(ALONE).tensor_bytes - kept(ALONE, attention="flash").tensor_bytes == 2 * 2 * 64 - 4 * 4
    assert unrotated_bytes(ALONE.layers[0], attention_of(ALONE), 2) == 2 * 2 * 64


def test_keys_and_values_that_heads_share_are_there_for_each():
    # Keys and values of 32 features become 64; a flash kernel keeps a statistic of 4 bytes a head.
    assert kept(SHARED).tensor_bytes - kept(SHARED, attention="flash").tensor_bytes == 2 * 2 * 32 - 4 * 4


@pytest.mark.parametrize("size", [2, 4])
def test_of_each_score_the_softmax_s_result_is_kept(size):
    assert kept(ALONE, size=size).score_bytes == 4 * size


def test_a_recomputed_attention_keeps_its_inputs_as_they_are_shared():
    keeps = selectively_saved_bytes(
        SHARED.layers[0], KERNELS, policy="attention_scores", attention="eager", element_bytes=2
    )
    assert keeps.score_bytes == 0
    # Keys and values of 64 features are not there; the product of 64 + 32 + 32 and rotated keys of 32 are.
    assert keeps.tensor_bytes - kept(SHARED).tensor_bytes == 2 * (128 + 32 - 128)


def test_the_product_with_the_values_has_two_tensors_of_scores_and_torch_s_softmax_three_in_fp32():
    sizes = {"element_bytes": 2, "learning": None}
    at_product = live_at_attention(SHARED.layers[0], KERNELS, attention="eager", **sizes)
    at_softmax = live_at_plain_softmax(SHARED.layers[0], KERNELS, **sizes)
    assert at_product.score_bytes == 4 * 2 * 2
    assert at_softmax.score_bytes == 4 * 3 * 4
    # In fp32 a mask was written into a view: the scores' gradient, two copies of it and the masked one.
    assert live_at_plain_softmax(SHARED.layers[0], KERNELS, element_bytes=4, learning=None).score_bytes == 4 * 4 * 4


def test_scores_are_kept_where_other_modules_alone_are_recomputed():
    # Traced: Qwen 3 of 12 stages keeps the softmax of each of 12 micro-batches, in fp32 and in 16 bits, where norms
    # alone are recomputed. 1,020 positions are no multiple of 8, so that the softmax is torch's.
    eager, flash = (
        asked(
            "megatron", model=SHARED, sequence_length=1020, attention=attention,
            recompute=Recompute(mode="selective", modules=("layernorm",)), layout={"recompute": SELECTIVE},
        ).active.layers[0].selective.item()
        for attention in ("eager", "flash")
    )  # fmt: skip
    # 4 heads, the mask, and of each token keys and values for every head and no statistics.
    assert eager - flash == 1020**2 * (4 * (4 + 2) + 1) + 1020 * (2 * 2 * 32 - 4 * 4)


def test_layers_that_attend_to_another_one_s_values_keep_none_of_their_own():
    model = "google/gemma-3n-E2B"
    layers = describe_config(dict(catalogue().model(model).config), name=model).layers
    saved = [dict.fromkeys((tensor.name for tensor in block.tensors), 0.0) for block in layers]
    for block, own in zip(layers, saved, strict=True):
        save_operands(block, own, 2)
    empty = [tensor.name for tensor in layers[-1].tensors if not tensor.width]
    assert empty
    assert not any(saved[-1][name] for name in empty)
