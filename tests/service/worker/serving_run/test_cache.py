"""The block cache: its shape, and what a request finds of what it wrote."""

import torch

from service.worker.serving_run.cache import BlockCache, Reach, served_attention
from tests.service.worker.serving_run.cases import deployment


def allocated(**parts):
    cache = BlockCache(deployment(**parts))
    cache.allocate("cpu")
    return cache


def test_every_layer_has_its_blocks_of_keys_and_values():
    cache = allocated()
    assert [tuple(layer.shape) for layer in cache.layers] == [(2, 40, 16, 2, 16)] * 2
    assert cache.layers[0].dtype is torch.bfloat16


def test_a_request_finds_what_its_earlier_tokens_wrote_in_its_own_blocks():
    cache = allocated()
    prompt, token = torch.ones(2, 2, 32, 16), torch.full((2, 2, 1, 16), 2.0)
    cache.written(0, prompt, prompt, Reach(first=1, count=2, position=0))
    held = cache.written(0, token, token, Reach(first=1, count=2, position=32))
    assert tuple(held.shape) == (2, 2, 2, 33, 16)
    assert held[0, 1, 0, :, 0].tolist() == [1.0] * 32 + [2.0]
    # Request 1 and 2 have blocks 3 to 8; nobody else's were touched, and the views are the blocks themselves.
    assert cache.layers[0][:, :3].abs().sum() == cache.layers[0][:, 9:].abs().sum() == 0
    assert held.untyped_storage().data_ptr() == cache.layers[0].untyped_storage().data_ptr()


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


def test_the_profiling_pass_attends_to_nothing():
    cache = BlockCache(deployment())
    query = torch.ones(1, 4, 8, 16)
    assert tuple(served_attention(cache, 0, query, query, query, None).shape) == (1, 8, 4, 16)
