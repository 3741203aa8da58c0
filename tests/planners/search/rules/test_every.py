import numpy as np
import pytest

from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.search.rules.every import RULES, obey, rule_by_name
from tests.planners.factories import llama, small_mixtral
from tests.planners.training_cases import job


@pytest.mark.parametrize(
    ("rule", "framework", "obeyed", "broken"),
    [
        ("framework", "megatron", {"zero_stage": 1}, {"zero_stage": 3}),
        ("framework", "ddp", {}, {"tensor_parallel": 2}),
        ("framework", "nanotron", {"data_parallel": 8}, {"data_parallel": 8, "shard_group": 4}),
        ("framework", "fsdp2", {"zero_stage": 3, "recompute": 2}, {"zero_stage": 3, "recompute": 2, "full_layers": 4}),
        ("heads_divide", "reference", {"tensor_parallel": 8}, {"tensor_parallel": 16}),
        ("heads_divide", "reference", {"tensor_parallel": 4}, {"tensor_parallel": 3}),
        # 32 layers, and embedding and head that may stand alone.
        ("stages_have_layers", "fsdp2", {"pipeline_parallel": 34}, {"pipeline_parallel": 35}),
        ("pipeline_layout_divides", "megatron", {"pipeline_parallel": 4}, {"pipeline_parallel": 5}),
        (
            "pipeline_layout_divides",
            # 32 layers, embedding and head are 34 blocks.
            "fsdp2",
            {"pipeline_parallel": 17, "virtual_pipeline": 2},
            {"pipeline_parallel": 7, "virtual_pipeline": 5},
        ),
        (
            # 32 layers and the 5 blocks around them fill 8 stages and never 64.
            "pipeline_layout_divides",
            "nanotron",
            {"pipeline_parallel": 8},
            {"pipeline_parallel": 64},
        ),
        (
            "recomputed_layers_divide",
            "megatron",
            {"pipeline_parallel": 4, "virtual_pipeline": 2, "recompute": 2, "full_layers": 4},
            {"pipeline_parallel": 4, "virtual_pipeline": 2, "recompute": 2, "full_layers": 3},
        ),
        (
            "recomputed_layers_divide",
            "megatron",
            {"virtual_pipeline": 4, "recompute": 2},
            {"virtual_pipeline": 4, "recompute": 2, "full_layers": 2},
        ),
        ("batch_divides", "reference", {"data_parallel": 64}, {"data_parallel": 48}),
        ("batch_divides", "reference", {"micro_batch_size": 32}, {"micro_batch_size": 24}),
        (
            "interleaving_needs_pipeline",
            "reference",
            {"pipeline_parallel": 2, "virtual_pipeline": 2},
            {"virtual_pipeline": 2},
        ),
        (
            "interleaving_needs_pipeline",
            "reference",
            {"pipeline_parallel": 4, "virtual_pipeline": 2},
            {"pipeline_parallel": 4, "virtual_pipeline": 2, "data_parallel": 32},
        ),
        ("sequence_divides", "reference", {"context_parallel": 4096}, {"context_parallel": 8192}),
        ("sequence_parallel_needs_tensor", "reference", {}, {"sequence_parallel": True}),
        (
            "shard_group_divides",
            "reference",
            {"data_parallel": 8, "shard_group": 4},
            {"data_parallel": 8, "shard_group": 3},
        ),
        (
            "shard_group_has_ranks",
            "accelerate",
            {"data_parallel": 2, "shard_group": 2, "zero_stage": 3},
            {"data_parallel": 2, "shard_group": 1, "zero_stage": 3},
        ),
        ("experts_divide", "reference", {}, {"expert_parallel": 2}),
        ("offload_needs_sharding", "deepspeed", {"offload": 2, "zero_stage": 3}, {"offload": 2, "zero_stage": 2}),
        ("offload_needs_sharding", "megatron", {"offload": 1, "zero_stage": 1}, {"offload": 1, "zero_stage": 0}),
        (
            "offload_needs_sharding",
            "fsdp2",
            {"offload": 2, "zero_stage": 3, "context_parallel": 2},
            {"offload": 2, "zero_stage": 3},
        ),
    ],
)
def test_a_rule_allows_one_side_of_its_edge_and_not_the_other(rule, framework, obeyed, broken):
    layouts = candidates_from_rows([obeyed, broken])
    assert rule_by_name(rule).obeyed(layouts, job(framework)).tolist() == [True, False]


def test_matrices_must_be_cut_into_equal_parts():
    # A feed-forward of 14,338 features over 4 ranks is cut unevenly, over 2 evenly.
    uneven = job("reference", model=llama(intermediate_size=14338))
    layouts = candidates_from_rows([{"tensor_parallel": 2}, {"tensor_parallel": 4}])
    assert rule_by_name("matrices_divide").obeyed(layouts, uneven).tolist() == [True, False]


def test_ring_attention_needs_flash():
    layouts = candidates_from_rows([{}, {"context_parallel": 2}])
    assert rule_by_name("context_needs_flash").obeyed(layouts, job(attention="eager")).tolist() == [True, False]
    assert rule_by_name("context_needs_flash").obeyed(layouts, job()).all()


def test_context_parallel_ranks_share_the_states_of_a_lone_replica():
    # torchtitan shards over dp_shard x cp: 1 x 2 ranks; one replica alone may keep its states on the host.
    layouts = candidates_from_rows(
        [
            {"data_parallel": 2, "context_parallel": 2, "shard_group": 1, "zero_stage": 3},
            {"data_parallel": 1, "shard_group": 1, "zero_stage": 3},
        ]
    )
    assert rule_by_name("shard_group_has_ranks").obeyed(layouts, job("fsdp2")).all()


def test_an_excluded_layout_counts_under_the_first_rule_it_breaks():
    layouts = candidates_from_rows([{}, {"tensor_parallel": 3, "expert_parallel": 2}])
    seen = obey(layouts, job())
    assert seen.allowed.tolist() == [True, False]
    assert seen.excluded["heads_divide"] == 1
    assert sum(seen.excluded.values()) == 1


def test_every_rule_says_why():
    assert all(rule.reason and rule.name for rule in RULES)
    assert len({rule.name for rule in RULES}) == len(RULES)


# One layout of which most rules have nothing to say, and others with everything that they are on.
UNLIKE = (
    {"data_parallel": 8},
    {"data_parallel": 4, "tensor_parallel": 2, "expert_parallel": 3, "zero_stage": 1},
    {"data_parallel": 4, "tensor_parallel": 2, "expert_parallel": 4, "sequence_parallel": True, "shard_group": 2},
    {"data_parallel": 4, "pipeline_parallel": 2, "virtual_pipeline": 3, "recompute": 2, "full_layers": 4},
    {"data_parallel": 4, "pipeline_parallel": 3, "virtual_pipeline": 2, "micro_batch_size": 3},
    {"data_parallel": 6, "secondary_shard_group": 4, "zero_stage": 3},
    {"data_parallel": 2, "context_parallel": 4, "expert_parallel": 2, "expert_overlap": True, "zero_stage": 2},
)


@pytest.mark.parametrize("framework", ["megatron", "fsdp2", "deepspeed", "nanotron"])
@pytest.mark.parametrize("model", [llama(), small_mixtral()])
def test_a_layout_breaks_the_same_rules_alone_and_beside_others(framework, model):
    asked, every = job(framework, model=model), candidates_from_rows(list(UNLIKE))
    for rule in RULES:
        together = np.broadcast_to(rule.broken(every, asked), len(every))
        alone = [bool(rule.broken(every.take([index]), asked).any()) for index in range(len(every))]
        assert together.tolist() == alone, rule.name
