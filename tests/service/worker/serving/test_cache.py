"""The block cache: its shape, and what a request finds of what it wrote."""

import contextlib

import pytest
import torch

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.service.worker.serving.cache import BlockCache, Reach
from plimsoll.service.worker.serving.cache_groups import CachedLayer
from plimsoll.service.worker.serving.served_attention import served_attention
from tests.service.worker.serving.cases import deployment

LAYER = CachedLayer(parts=2, heads=2, features=16, window=None)
WINDOWED = CachedLayer(parts=2, heads=2, features=16, window=8)


def allocated(layers=(LAYER, LAYER), **parts):
    cache = BlockCache(deployment(**parts))
    cache.arrange(layers)
    cache.allocate("cpu")
    return cache


def test_every_layer_has_its_blocks_of_keys_and_values():
    cache = allocated()
    assert [tuple(layer.shape) for layer in cache.tensors] == [(2, 40, 16, 2, 16)] * 2
    assert cache.tensors[0].dtype is torch.bfloat16


def test_a_request_finds_what_its_earlier_tokens_wrote_in_its_own_blocks():
    cache = allocated()
    prompt, token = torch.ones(2, 2, 32, 16), torch.full((2, 2, 1, 16), 2.0)
    cache.written(0, (prompt, prompt), Reach(first=1, count=2, position=0))
    held = cache.written(0, (token, token), Reach(first=1, count=2, position=32))
    assert tuple(held.shape) == (2, 2, 2, 33, 16)
    assert held[0, 1, 0, :, 0].tolist() == [1.0] * 32 + [2.0]
    # Request 1 and 2 have blocks 3 to 8; nobody else's were touched, and the views are the blocks themselves.
    assert cache.tensors[0][:, :3].abs().sum() == cache.tensors[0][:, 9:].abs().sum() == 0
    assert held.untyped_storage().data_ptr() == cache.tensors[0].untyped_storage().data_ptr()


def test_attention_through_the_cache_is_attention():
    cache = allocated(settings={"weights": "bf16"})
    torch.manual_seed(0)
    query = torch.randn(1, 4, 32, 16, dtype=torch.bfloat16)
    key, value = torch.randn(2, 1, 2, 32, 16, dtype=torch.bfloat16)
    cache.reach = Reach(first=0, count=1, position=0)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    assert torch.equal(served_attention(cache, 0, query, key, value, None), expected.transpose(1, 2))


def test_a_narrow_cache_is_widened_a_request_at_a_time():
    cache = allocated(settings={"kv_cache": "fp8"})
    ones = torch.ones(3, 2, 1, 16, dtype=torch.bfloat16)
    cache.reach = Reach(first=0, count=3, position=0)
    output = served_attention(cache, 1, torch.ones(3, 4, 1, 16, dtype=torch.bfloat16), ones, ones, None)
    assert tuple(output.shape) == (3, 1, 4, 16)
    assert output.unique().tolist() == [1.0]


def test_layers_with_and_without_windows_share_tensors_and_have_blocks_of_their_own():
    # Two layers of each kind: two groups of two, which draw from two tensors; 48 tokens fill three blocks, a window of
    # 8 and a pass of 32 also three.
    cache = allocated((LAYER, WINDOWED, LAYER, WINDOWED))
    assert [tuple(tensor.shape) for tensor in cache.tensors] == [(2, 40, 16, 2, 16)] * 2
    ones = torch.ones(5, 2, 32, 16)
    cache.written(2, (ones, ones), Reach(first=0, count=5, position=0))
    cache.written(3, (ones, ones), Reach(first=0, count=5, position=0))
    # Of the second tensor blocks 0 to 14 are the third layer's, 15 to 29 the fourth's; a prompt fills two of three.
    filled = cache.tensors[1][0, :, 0, 0, 0].tolist()
    assert filled == [1.0, 1.0, 0.0] * 10 + [0.0] * 10
    assert cache.tensors[0].abs().sum() == 0


@pytest.mark.parametrize(("blocks", "fits"), [(30, True), (29, False)])
def test_a_batch_that_the_blocks_do_not_hold_is_no_plan(blocks, fits):
    # Five requests of three blocks in each of two groups.
    with contextlib.nullcontext() if fits else pytest.raises(InvalidQuestion, match="30 blocks"):
        allocated((LAYER, WINDOWED), kv={"blocks": blocks})


def test_a_layer_with_a_window_sees_it_and_the_pass_alone():
    cache = allocated((LAYER, WINDOWED))
    token = torch.ones(2, 2, 1, 16)
    assert cache.written(0, (token, token), Reach(first=0, count=2, position=40)).shape[3] == 41
    # The token itself and seven before it.
    assert cache.written(1, (token, token), Reach(first=0, count=2, position=40)).shape[3] == 8


def test_the_profiling_pass_attends_to_nothing():
    cache = BlockCache(deployment())
    query = torch.ones(1, 4, 8, 16)
    assert tuple(served_attention(cache, 0, query, query, query, None).shape) == (1, 8, 4, 16)
