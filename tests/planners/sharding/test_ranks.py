"""Every rank's shards against what the stacks do, element by element."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import ImpossibleLayout, InvalidQuestion
from plimsoll.planners.sharding import ShardLayout, account, first_rank, rank_elements, rank_shards, shards
from plimsoll.planners.sharding.stages import behind_the_first
from tests.planners.sharding.models import ALL, LLAMA, MIXTRAL, TIED_LLAMA, spec
from tests.planners.sharding.policies import NAMES, POLICIES
from tests.planners.sharding.stacks import rank_tensors


@st.composite
def cases(draw):
    """Return a model, a layout and a policy that the stack would accept."""
    policy = POLICIES[draw(st.sampled_from(sorted(POLICIES)))]
    model = spec(ALL[draw(st.sampled_from(sorted(ALL)))])
    stages = draw(st.integers(1, min(3, model.num_layers)))
    layout = ShardLayout(
        tensor_parallel=draw(st.sampled_from([1, 2, 4])),
        shard_ranks=1 if NAMES[policy] in ("ddp", "vllm") else draw(st.sampled_from([1, 2, 3, 5, 8])),
        replicas=draw(st.sampled_from([1, 2])),
        expert_parallel=draw(st.sampled_from([1, 2, 4])),
        expert_tensor_parallel=draw(st.sampled_from([None, 1, 2])),
        pipeline_parallel=stages,
        stage_layers=draw(st.sampled_from([None, (model.num_layers - stages + 1,) + (1,) * (stages - 1)])),
    )
    try:
        rank_elements(model, layout, policy)
    except ImpossibleLayout:
        assume(False)
    event(NAMES[policy])
    return model, layout, policy


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(cases())
def test_every_rank_holds_what_the_stack_gives_it(case):
    model, layout, policy = case
    layers = layout.stage_layers or behind_the_first(model.num_layers, layout.pipeline_parallel)
    totals = rank_elements(model, layout, policy)
    for rank in range(layout.ranks):
        planned = list(rank_shards(model, layout, policy, rank))
        real = rank_tensors(model, layers, layout, policy, rank)
        assert [shard.local_shape for shard in planned] == [held.indices.shape for held in real]
        assert [shard.elements for shard in planned] == [int((held.indices >= 0).sum()) for held in real]
        assert [shard.stored_elements for shard in planned] == [held.stored for held in real]
        place = divmod(rank, layout.ranks_per_stage)
        assert totals.elements[place] == sum(shard.elements for shard in planned)
        # A flat buffer is padded between and behind its tensors; otherwise the tensors are all there is.
        assert totals.stored[place] >= sum(shard.stored_elements for shard in planned)
        if policy.cut.is_by_tensor:
            assert totals.stored[place] == sum(shard.stored_elements for shard in planned)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_all_ranks_together_hold_the_model_its_copies_and_padding(case):
    model, layout, policy = case
    total = account(model, layout, policy)
    totals = rank_elements(model, layout, policy)
    assert total.model == model.parameters
    assert total.stored == totals.stored.sum()
    assert total.model + total.tied_copy + total.tensor_copies + total.data_copies == totals.elements.sum()
    assert min(total.tied_copy, total.tensor_copies, total.data_copies, total.padding) >= 0


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(cases())
def test_each_element_stands_on_as_many_ranks_as_its_shard_has_replicas(case):
    model, layout, policy = case
    layers = layout.stage_layers or behind_the_first(model.num_layers, layout.pipeline_parallel)
    for stage in range(layout.pipeline_parallel):
        seen: dict[str, Counter[int]] = {}
        first = stage * layout.ranks_per_stage
        for rank in range(first, first + layout.ranks_per_stage):
            for held in rank_tensors(model, layers, layout, policy, rank):
                seen.setdefault(held.weight, Counter()).update(held.indices[held.indices >= 0].tolist())
        replicas = {}
        for shard in rank_shards(model, layout, policy, first):
            replicas.setdefault(shard.name.split("experts")[0], shard.replicas)
        for name, counts in seen.items():
            # Keys and values joined with queries stand on more ranks than these.
            assert min(counts.values()) == replicas[name.split("experts")[0]] or "experts" in name


@settings(max_examples=40, deadline=None)
@given(cases())
def test_the_boxes_of_a_tensor_cover_its_mesh_once(case):
    model, layout, policy = case
    volume: Counter[tuple[int, str]] = Counter()
    for shard in shards(model, layout, policy):
        volume[shard.stage, shard.name] += len(shard.tensor_ranks) * len(shard.expert_ranks) * len(shard.shard_ranks)
    meshes = {layout.tensor_parallel * layout.shard_ranks}
    if any(weight.experts > 1 for block in model.layers for weight in block.weights):
        mesh = policy.expert_mesh(layout)
        meshes |= {mesh.tensor * mesh.expert * mesh.shard, mesh.tensor * mesh.shard}
    assert set(volume.values()) <= meshes


FOUR_RANKS = {
    "model_type": "llama", "vocab_size": 32003, "hidden_size": 512, "intermediate_size": 1366, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4,
}  # fmt: skip
TINY = {"hidden_size": 64, "intermediate_size": 130, "num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.mark.parametrize(
    ("changes", "tensor_parallel", "parameter_bytes", "optimizer_bytes"),
    [
        ({}, 1, 55_874_048, {0: 111_748_396, 3: 111_609_132}),
        ({}, 2, 55_882_752, {0: 111_765_804, 2: 111_700_268, 3: 111_692_076}),
        ({"vocab_size": 32001, "intermediate_size": 1365}, 1, 55_869_952, {0: 111_740_204}),
        ({**TINY, "vocab_size": 101, "num_hidden_layers": 2}, 1, 88_640, {0: 177_364}),
    ],
)
def test_four_real_ranks_store_what_the_table_says(changes, tensor_parallel, parameter_bytes, optimizer_bytes):
    # Measured on four gloo processes under FSDP2, parameters in fp32: parameters are stored padded on every rank, Adam
    # keeps two fp32 moments of the unpadded shard and a 4-byte step counter a tensor.
    model = describe_config({**FOUR_RANKS, **changes}, name="odd")
    layout = ShardLayout(tensor_parallel=tensor_parallel, shard_ranks=4 // tensor_parallel)
    totals = rank_elements(model, layout, POLICIES["fsdp2"])
    tensors = sum(1 for _ in model.named_weights())
    assert (4 * totals.stored).tolist() == [[parameter_bytes] * 4]
    for rank, expected in optimizer_bytes.items():
        assert 8 * totals.elements[0, rank] + 4 * tensors == expected


def test_eight_fused_experts_leave_most_of_64_ranks_empty():
    # Mixtral-8x7B: 8 experts of 3 x 4,096 x 14,336 in each of 32 layers; the first eight ranks hold one each, and all
    # ranks store as much: 5.66e9 elements where an even share were 0.73e9.
    model = describe_config(
        {
            "model_type": "mixtral",
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        name="mixtral",
    )
    experts, routers = 32 * 8 * 3 * 4096 * 14336, 32 * 8 * 4096
    rest = (model.parameters - experts - routers) // 64
    fused = rank_elements(model, ShardLayout(shard_ranks=64), POLICIES["fsdp2"])
    # A router's 8 rows lie like the experts, one on each of eight ranks.
    assert fused.stored[0].tolist() == [experts // 8 + routers // 8 + rest] * 64
    assert fused.elements[0, 8:].tolist() == [rest] * 56
    cut_second = rank_elements(model, ShardLayout(shard_ranks=64), POLICIES["torchtitan"])
    assert cut_second.stored[0].tolist() == [experts // 64 + routers // 8 + rest] * 64


def test_a_thousand_ranks_cost_no_more_than_one():
    model = spec(LLAMA, vocab_size=128_256)
    totals = rank_elements(model, ShardLayout(shard_ranks=1024), POLICIES["fsdp2"])
    # 128,256 rows over 1,024 ranks are 126 a rank, on 1,017 ranks and 114 on the next; 16 and 24 rows leave most bare.
    assert totals.elements[0, 1016] == 126 * 16 * 2
    assert totals.elements[0, 1017] == 114 * 16 * 2
    assert totals.elements[0, 1018] == 0


@settings(max_examples=40, deadline=None)
@given(cases())
def test_no_rank_stores_more_than_the_first_of_a_single_stage(case):
    model, layout, policy = case
    layout = dataclasses.replace(layout, pipeline_parallel=1, stage_layers=None)
    totals = rank_elements(model, layout, policy)
    weights = [weight for block in model.blocks for _ in range(block.repeats) for weight in block.weights]
    first = first_rank(weights, layout, policy)
    assert first.stored == totals.stored.max()
    assert first.whole >= first.elements
    assert first.gathered >= first.whole
    if NAMES[policy] != "megatron":  # whose buffer is filled from the last weight on, so that order counts
        assert first.elements == totals.elements[0, 0]


def test_tied_embeddings_stand_on_the_last_stage_too():
    layout = ShardLayout(pipeline_parallel=3)
    total = account(spec(TIED_LLAMA), layout, POLICIES["vllm"])
    # 101 rows are padded to 128 of 16 on both stages.
    assert (total.tied_copy, total.padding) == (101 * 16, 2 * 27 * 16)
    last = [shard.name for shard in rank_shards(spec(TIED_LLAMA), layout, POLICIES["vllm"], 2)]
    assert last[-2:] == ["model.embed_tokens.weight", "model.norm.weight"]


def test_megatron_names_each_expert_where_it_stands():
    layout = ShardLayout(shard_ranks=2, expert_parallel=2, expert_tensor_parallel=1)
    held = [
        shard
        for shard in shards(spec(MIXTRAL), layout, POLICIES["megatron"])
        if ".0.block_sparse_moe.experts." in shard.name
    ]
    where = {shard.name.split("experts.")[1]: shard.expert_ranks.start for shard in held}
    assert (where["2.w1.weight"], where["3.w1.weight"]) == (0, 1)
    assert len(where) == 6 * 3


def test_a_rank_that_is_not_there_is_refused():
    with pytest.raises(InvalidQuestion, match="rank 4 is not one of 4"):
        next(rank_shards(spec(LLAMA), ShardLayout(shard_ranks=4), POLICIES["fsdp2"], 4))


def test_totals_are_integers_by_stage_and_rank():
    totals = rank_elements(spec(LLAMA), ShardLayout(shard_ranks=2, pipeline_parallel=3), POLICIES["reference"])
    assert totals.stored.shape == (3, 2)
    assert totals.stored.dtype == np.int64
