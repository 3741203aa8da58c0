"""The meshes that degrees make."""

from __future__ import annotations

import pytest

from plimsoll.planners.ground.errors import ImpossibleLayout, InvalidQuestion
from plimsoll.planners.sharding import Mesh, ShardLayout


def test_the_tensor_axis_is_counted_fastest():
    mesh = ShardLayout(tensor_parallel=2, shard_ranks=3, replicas=2).dense_mesh
    assert [mesh.coordinates(rank) for rank in (0, 1, 2, 5, 6)] == [
        (0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 2), (0, 0, 0),
    ]  # fmt: skip


def test_all_coordinates_are_those_of_each_rank():
    mesh = Mesh(tensor=2, expert=3, shard=2, replicas=2)
    tensor, expert, shard = mesh.all_coordinates()
    assert list(zip(tensor, expert, shard, strict=True)) == [mesh.coordinates(rank) for rank in range(mesh.ranks)]


@pytest.mark.parametrize(
    ("expert", "expert_tensor", "shard", "replicas"),
    # 4 tensor x 8 shard ranks, twice. The expert axis comes out of the shard axis, or out of the replicas.
    [(1, 4, 8, 2), (8, 1, 4, 2), (8, 4, 1, 2), (32, 1, 1, 2), (64, 1, 1, 1), (16, 4, 1, 1)],
)
def test_experts_are_divided_over_the_same_ranks(expert, expert_tensor, shard, replicas):
    layout = ShardLayout(tensor_parallel=4, shard_ranks=8, replicas=2, expert_parallel=expert)
    mesh = layout.expert_mesh(expert_tensor)
    assert (mesh.shard, mesh.replicas, mesh.ranks) == (shard, replicas, layout.ranks_per_stage)


@pytest.mark.parametrize("expert", [3, 12, 128])
def test_expert_degrees_that_do_not_divide_the_ranks_are_refused(expert: int):
    layout = ShardLayout(tensor_parallel=4, shard_ranks=8, replicas=2, expert_parallel=expert)
    with pytest.raises(ImpossibleLayout, match="divide neither the 32 ranks of a replica nor the 64"):
        layout.expert_mesh(1)


def test_ranks_multiply():
    layout = ShardLayout(tensor_parallel=2, shard_ranks=3, replicas=5, pipeline_parallel=7)
    assert (layout.ranks_per_stage, layout.ranks) == (30, 210)


@pytest.mark.parametrize("name", ["tensor_parallel", "shard_ranks", "replicas", "expert_parallel", "pipeline_parallel"])
def test_a_degree_below_one_is_refused(name: str):
    assert getattr(ShardLayout(**{name: 1}), name) == 1
    with pytest.raises(InvalidQuestion, match=f"{name} is 0"):
        ShardLayout(**{name: 0})


def test_stages_must_be_as_many_as_the_degree():
    with pytest.raises(InvalidQuestion, match="names 3 stages, pipeline_parallel is 2"):
        ShardLayout(pipeline_parallel=2, stage_layers=(1, 1, 1))
