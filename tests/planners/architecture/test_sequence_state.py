"""What a layer remembers of each token."""

from __future__ import annotations

import pytest

from plimsoll.planners.architecture import CompressedState, KvKind, KvState


def state(heads: int = 8, head_dim: int = 128) -> KvState:
    return KvState(kind=KvKind.FULL_ATTENTION, heads=heads, head_dim=head_dim)


def test_a_token_adds_a_key_and_a_value_for_each_head() -> None:
    assert state().elements_per_token == 2 * 8 * 128


def test_grouped_heads_scale_the_cache_by_their_share() -> None:
    # Llama 3.1 8B: 8 of 32 heads keep keys and values, a quarter of the cache.
    assert state(8).elements_per_token * 4 == state(32).elements_per_token


def compressed(tokens_per_entry: int) -> KvState:
    entries = CompressedState(entry_width=512, index_width=128, tokens_per_entry=tokens_per_entry)
    return KvState(kind=KvKind.COMPRESSED, latent_width=512, window=128, compressed=entries)


@pytest.mark.parametrize(("tokens_per_entry", "elements"), [(1, 640), (4, 160), (128, 5), (639, 2), (640, 1), (641, 1)])
def test_a_compressed_cache_grows_by_a_share_of_an_entry_rounded_up(tokens_per_entry: int, elements: int) -> None:
    # An entry with its index: 512 + 128 = 640 elements; what the window holds does not grow.
    assert compressed(tokens_per_entry).elements_per_token == elements
