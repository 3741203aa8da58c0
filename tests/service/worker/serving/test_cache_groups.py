"""Groups of layers that cache unlike, after vLLM's own tests and published logs."""

import pytest

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.serving.cache_groups import CachedLayer, Place, layer_groups, places

FULL = CachedLayer(parts=2, heads=2, features=16, window=None)
SLIDING = CachedLayer(parts=2, heads=2, features=16, window=8)


@pytest.mark.parametrize(
    ("layers", "lengths"),
    [
        ([FULL] * 3, [3]),
        # vllm/tests/v1/core/test_kv_cache_utils.py: two of full attention and four with windows make three groups of
        # two; three and seven make groups of three, of which one lacks two layers.
        ([FULL, SLIDING, SLIDING] * 2, [2, 2, 2]),
        ([FULL] * 3 + [SLIDING] * 7, [3, 3, 2, 2]),
        # Less than one and a half times as many: one group each, the smaller padded (Gemma 2 9B, 21 and 21).
        ([FULL] * 4 + [SLIDING] * 5, [4, 5]),
    ],
)
def test_groups_are_as_the_engine_s(layers, lengths):
    assert [len(group) for group in layer_groups(layers)] == lengths


def test_layers_without_windows_share_one_group_whatever_their_widths():
    wide = CachedLayer(parts=2, heads=4, features=16, window=None)
    assert layer_groups([FULL, wide]) == ((0, 1),)


def test_windows_beside_wider_keys_are_refused():
    wide = CachedLayer(parts=2, heads=4, features=16, window=None)
    with pytest.raises(NotYetAvailable):
        layer_groups([wide, SLIDING])


def test_a_stage_has_places_for_its_own_layers_alone():
    groups = layer_groups([FULL, SLIDING, FULL, SLIDING])
    assert places(groups, range(2, 4)) == {2: Place(group=0, tensor=0), 3: Place(group=1, tensor=0)}
