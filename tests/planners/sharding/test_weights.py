"""One weight on each tensor and expert rank, worked out by hand for each stack."""

from __future__ import annotations

import pytest

from plimsoll.planners.architecture import Part, Split, Weight
from plimsoll.planners.ground.errors import ImpossibleLayout
from plimsoll.planners.sharding import Mesh, ShardLayout
from plimsoll.planners.sharding.weights import checkpoint_tensor, expert_span, local_weight, tensor_copies
from tests.planners.sharding.policies import POLICIES

HEAD = Weight(name="head", shape=(50257, 16), part=Part.HEAD, split=Split.VOCABULARY, dim=0)
KEYS = Weight(name="k", shape=(2 * 128, 512), part=Part.ATTENTION, split=Split.COLUMN, dim=0, units=2)
# 8 query heads, 2 key heads and 2 value heads of 128 features in one matrix.
JOINED = Weight(
    name="qkv",
    shape=(12 * 128, 512),
    part=Part.ATTENTION,
    split=Split.COLUMN,
    dim=0,
    sections=((8 * 128, 8), (2 * 128, 2), (2 * 128, 2)),
)
NORM = Weight(name="norm", shape=(512,), part=Part.NORM)
EXPERTS = Weight(name="experts.{expert}.up", shape=(96, 64), part=Part.EXPERT, split=Split.COLUMN, dim=0, experts=10)
FUSED = Weight(
    name="experts.up", shape=(10, 64, 96), part=Part.EXPERT, split=Split.COLUMN, dim=2, experts=10, is_fused=True
)
JOINED_EXPERTS = Weight(
    name="w1",
    shape=(10 * 96, 64),
    part=Part.EXPERT,
    split=Split.COLUMN,
    dim=0,
    sections=((96, 0),) * 10,
    experts=10,
    is_fused=True,
)


def mesh(tensor: int = 1, expert: int = 1, shard: int = 1) -> Mesh:
    return Mesh(tensor=tensor, expert=expert, shard=shard, replicas=1)


def shapes(weight: Weight, policy: str, degree: int) -> list[tuple[int, ...]]:
    on = mesh(degree)
    return [local_weight(weight, on, POLICIES[policy], tensor_rank=rank).tensor.shape for rank in range(degree)]


def test_megatron_pads_the_vocabulary_to_128_times_the_degree():
    # 50,257 up to a multiple of 512 is 50,688, so 12,672 rows a rank.
    assert shapes(HEAD, "megatron", 4) == [(12672, 16)] * 4
    last = local_weight(HEAD, mesh(4), POLICIES["megatron"], tensor_rank=3).tensor
    # The last rank's first 50,257 - 3 x 12,672 = 12,241 rows are the model's.
    assert last.elements == 12241 * 16


def test_megatron_pads_without_tensor_parallelism_too():
    # GPT-2's 50,257 become Megatron's well-known 50,304.
    assert shapes(HEAD, "megatron", 1) == [(50304, 16)]


def test_vllm_pads_the_vocabulary_to_64_and_divides():
    # 50,257 up to a multiple of 64 is 50,304, so 12,576 rows a rank.
    assert shapes(HEAD, "vllm", 4) == [(12576, 16)] * 4


def test_vllm_refuses_a_degree_that_64_rows_do_not_divide_by():
    # 50,304 = 2^7 x 3 x 131.
    with pytest.raises(ImpossibleLayout, match="50304 rows"):
        shapes(HEAD, "vllm", 5)


def test_dtensor_cuts_the_vocabulary_in_ceilings():
    # 50,257 / 4 is 12,564.25: three ranks of 12,565 and one of 12,562.
    assert shapes(HEAD, "fsdp2", 4) == [(12565, 16)] * 3 + [(12562, 16)]


def test_dtensor_may_leave_ranks_without_a_row():
    five = Weight(name="head", shape=(5, 16), part=Part.HEAD, split=Split.VOCABULARY, dim=0)
    assert shapes(five, "torchtitan", 4) == [(2, 16), (2, 16), (1, 16), (0, 16)]


@pytest.mark.parametrize(("degree", "rows"), [(1, 256), (2, 128), (4, 128), (8, 128)])
def test_vllm_gives_each_rank_a_whole_key_head(degree: int, rows: int):
    assert shapes(KEYS, "vllm", degree) == [(rows, 512)] * degree


@pytest.mark.parametrize(("degree", "rows"), [(2, 128), (4, 64), (8, 32)])
def test_megatron_cuts_through_key_heads(degree: int, rows: int):
    assert shapes(KEYS, "megatron", degree) == [(rows, 512)] * degree


@pytest.mark.parametrize("policy", ["fsdp2", "torchtitan", "deepspeed-zero3", "ddp"])
def test_other_stacks_refuse_to_divide_a_head(policy: str):
    assert shapes(KEYS, policy, 2) == [(128, 512)] * 2
    with pytest.raises(ImpossibleLayout, match="2 heads"):
        shapes(KEYS, policy, 4)


def test_heads_that_neither_divide_nor_are_divided_are_refused():
    with pytest.raises(ImpossibleLayout, match="2 heads"):
        shapes(KEYS, "vllm", 3)


def test_joined_projections_are_divided_each_by_its_own_heads():
    # Over 4 ranks: 2 query heads, and one key and one value head that two ranks hold; 4 x 128 rows.
    assert shapes(JOINED, "vllm", 4) == [(4 * 128, 512)] * 4
    assert [copies for _, copies in tensor_copies(JOINED, 4, POLICIES["vllm"])] == [1, 2, 2]
    # Megatron gathers instead: 12 x 128 rows over 4.
    assert shapes(JOINED, "megatron", 4) == [(3 * 128, 512)] * 4


def test_state_groups_are_not_cut_through():
    groups = Weight(name="b", shape=(2 * 8, 64), part=Part.RECURRENT, split=Split.COLUMN, dim=0, units=2)
    with pytest.raises(ImpossibleLayout):
        shapes(groups, "megatron", 4)
    assert shapes(groups, "vllm", 4) == [(8, 64)] * 4


def test_norms_stand_whole_on_every_rank():
    assert shapes(NORM, "megatron", 8) == [(512,)] * 8
    assert tensor_copies(NORM, 8, POLICIES["megatron"]) == ((512, 8),)


def test_features_that_do_not_divide_are_refused():
    # As torch itself does for 131 features over two ranks.
    inner = Weight(name="up", shape=(131, 64), part=Part.FEED_FORWARD, split=Split.COLUMN, dim=0)
    with pytest.raises(ImpossibleLayout, match="dimension 131 of up"):
        shapes(inner, "fsdp2", 2)


def test_vllm_gives_the_first_ranks_one_expert_more():
    spans = [expert_span(10, 4, rank, POLICIES["vllm"]) for rank in range(4)]
    assert spans == [(0, 3), (3, 6), (6, 8), (8, 10)]


@pytest.mark.parametrize(("policy", "degree"), [("megatron", 4), ("torchtitan", 3), ("vllm", 11)])
def test_experts_that_do_not_divide_are_refused(policy: str, degree: int):
    with pytest.raises(ImpossibleLayout, match="10 experts") as caught:
        expert_span(10, degree, 0, POLICIES[policy])
    assert caught.value.rule == "experts-divide"


def test_megatron_keeps_experts_apart_and_transformers_stack_them():
    on = mesh(tensor=2, expert=5)
    apart = local_weight(EXPERTS, on, POLICIES["megatron"])
    assert (apart.tensor.shape, apart.tensors) == ((48, 64), 2)
    stacked = local_weight(EXPERTS, on, POLICIES["fsdp2"])
    assert (stacked.tensor.shape, stacked.tensors) == ((2, 48, 64), 1)


def test_fused_experts_are_taken_apart_where_the_stack_does():
    on = mesh(tensor=2, expert=5)
    assert local_weight(FUSED, on, POLICIES["megatron"]).tensor.shape == (64, 48)
    assert local_weight(FUSED, on, POLICIES["vllm"]).tensor.shape == (2, 64, 48)


def test_joined_experts_stay_joined_by_row():
    on = mesh(tensor=2, expert=5)
    assert local_weight(JOINED_EXPERTS, on, POLICIES["fsdp2"]).tensor.shape == (2 * 48, 64)
    assert local_weight(JOINED_EXPERTS, on, POLICIES["megatron"]).tensor.shape == (48, 64)


@pytest.mark.parametrize(("shard", "dim"), [(2, 0), (5, 0), (6, 1), (64, 1)])
def test_torchtitan_cuts_experts_second_where_there_are_more_ranks_than_experts(shard: int, dim: int):
    # Two expert ranks: 2 x 5 shard ranks are just the ten experts.
    on = mesh(expert=2, shard=shard)
    assert local_weight(EXPERTS, on, POLICIES["torchtitan"]).tensor.cut_dim == dim
    assert local_weight(EXPERTS, on, POLICIES["fsdp2"]).tensor.cut_dim == 0


def test_the_checkpoints_tensor_keeps_its_dimensions():
    layout = ShardLayout(tensor_parallel=2, shard_ranks=5, expert_parallel=5, expert_tensor_parallel=2)
    policy = POLICIES["torchtitan"]
    assert checkpoint_tensor(EXPERTS, layout, policy) == (48, 64)
    assert checkpoint_tensor(FUSED, layout, policy) == (2, 64, 48)
    assert checkpoint_tensor(KEYS, layout, policy) == (128, 512)
