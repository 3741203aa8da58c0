"""Tests of what pools of units hold of requests that take of each."""

from __future__ import annotations

import dataclasses

import pytest

from plimsoll.planners.architecture import KvKind
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.serving.cache.pools import (
    Bucket,
    caching_blocks,
    concurrency,
    holds,
    layer_indices,
    least,
    requests_held,
    requests_running,
    states_of,
)
from tests.planners.serving.factories import hybrid, model


def test_stages_have_the_least_of_each_pool_in_common():
    assert least([(10, 3)]) == (10, 3)
    assert least([(10, 3), (8, 5)]) == (8, 3)


def test_the_scarcest_pool_bounds_the_requests():
    # 100 / 10 and 12 / 2 of the second pool; a pool that nothing is taken of bounds nothing.
    assert concurrency((100, 12), (10, 2)) == 6
    assert concurrency((100, 0), (10, 0)) == 10


@pytest.mark.parametrize(("needs", "fits"), [((10, 2), True), ((11, 2), False), ((10, 3), False)])
def test_a_request_fits_where_every_pool_has_what_it_takes(needs, fits):
    assert holds((10, 2), needs) is fits


def test_requests_of_several_lengths_take_their_mean():
    # Halves of 10 and of 30 units: 100 hold 5.
    assert requests_held((100,), [(10,), (30,)]) == 5
    # Of the second pool each takes 1: 4.
    assert requests_held((100, 4), [(10, 1), (30, 1)]) == 4


def test_requests_that_run_longer_take_their_room_longer():
    # One that takes 20 for 3 steps beside one that takes 10 for 1: (20 x 3 + 10) / 4 = 17.5 at any moment.
    assert requests_running((70,), [((10,), 1), ((20,), 3)]) == 4
    assert requests_running((69,), [((10,), 1), ((20,), 3)]) == 3


def test_a_bucket_counts_its_layers_in_a_stage():
    state = model().layers[0].kv
    bucket = Bucket(state=state, layers=(0, 2, 5), bytes_per_token=1, page_bytes=1, block_size=1)
    assert [bucket.layers_within(stage) for stage in (range(3), range(3, 6), range(3, 5))] == [2, 1, 0]


def test_layers_are_taken_together_by_what_they_cache():
    states = states_of(hybrid(full=2, sliding=3, window=64).layers)
    assert {state.kind: len(layer_indices(blocks)) for state, blocks in states.items()} == {
        KvKind.FULL_ATTENTION: 2,
        KvKind.SLIDING_WINDOW: 3,
    }


def test_a_model_that_caches_nothing_is_refused():
    spec = model()
    bare = dataclasses.replace(spec, layers=(dataclasses.replace(spec.layers[0], kv=None),))
    with pytest.raises(InvalidQuestion, match="encoder") as caught:
        caching_blocks(bare)
    assert caught.value.pointer == "/model"
