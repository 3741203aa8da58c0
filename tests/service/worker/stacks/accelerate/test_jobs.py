import pytest

from plimsoll.service.worker.stacks.accelerate.jobs import (
    is_launched_on_many,
    is_wrapped_by_accelerate,
    recomputes_every_layer,
)
from tests.service.worker.cases import job


@pytest.mark.parametrize(
    ("changes", "wrapped"),
    [
        ({}, True),
        ({"shard_group": 2}, True),
        ({"tensor_parallel": 2}, False),
        ({"pipeline_parallel": 2}, False),
        ({"context_parallel": 2}, False),
        ({"expert_parallel": 2}, False),
    ],
)
def test_accelerate_wraps_what_only_divides_data(changes, wrapped):
    assert is_wrapped_by_accelerate(job(**changes)) is wrapped


@pytest.mark.parametrize(("ranks", "stage", "many"), [(1, 0, False), (1, 3, True), (2, 0, True)])
def test_one_process_is_launched_as_one_unless_it_shards(ranks, stage, many):
    assert is_launched_on_many(job(data_parallel=ranks, zero_stage=stage)) is many


@pytest.mark.parametrize(
    ("changes", "every"),
    [({"recompute": "full"}, True), ({"recompute": "full", "recompute_layers": 1}, False), ({}, False)],
)
def test_accelerate_recomputes_all_layers_or_none(changes, every):
    assert recomputes_every_layer(job(**changes)) is every
