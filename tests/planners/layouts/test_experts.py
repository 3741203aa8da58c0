"""Which expert-parallel degrees a mesh can have, and what their ranks share."""

import numpy as np
import pytest

from plimsoll.planners.families import describe_config
from plimsoll.planners.layouts.experts import (
    busiest_rank_multiple,
    expert_degrees,
    expert_tensor_ranks,
    paired_fraction,
)
from plimsoll.planners.search.axes import candidate_grid
from plimsoll.planners.search.rules.every import obey
from plimsoll.planners.search.violations import every_broken_rule
from tests.planners.factories import question
from tests.planners.memory.test_experts import CONFIG
from tests.planners.training_cases import job, one_layout

MODEL = describe_config({**CONFIG, "n_routed_experts": 12}, name="mixture")
# As many experts under grouped-query attention, for stacks without code for latent attention.
GROUPED = describe_config(
    {
        "model_type": "mixtral", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "num_local_experts": 12, "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    },
    name="grouped",
)  # fmt: skip


def degrees(framework: str, **layout: int) -> list[int]:
    asked = question(model=GROUPED, framework=framework, layout=layout)
    return expert_degrees(asked, job(framework, model=GROUPED))


def test_every_divisor_of_the_experts_is_tried():
    assert degrees("megatron") == [1, 2, 3, 4, 6, 12]


def test_a_fixed_degree_is_the_only_one():
    assert degrees("megatron", expert_parallel=4) == [4]


def test_a_stack_without_expert_parallelism_tries_none():
    assert degrees("nanotron") == [1]


def test_a_dense_model_tries_none():
    assert expert_degrees(question(framework="megatron"), job("megatron")) == [1]


@pytest.mark.parametrize(("framework", "most"), [("megatron", 4), ("megatron-deepspeed", 2)])
def test_tensor_ranks_hold_experts_where_the_stack_lets_them(framework, most):
    # Two replicas of two tensor ranks: two ranks that share experts, or four.
    layout = {"data_parallel": 2, "tensor_parallel": 2, "pipeline_parallel": 1, "context_parallel": 1}
    asked = question(model=GROUPED, framework=framework, gpus=4, global_batch_size=2, layout=layout)
    found = candidate_grid(asked, job(framework, model=GROUPED), np.array([4]))
    assert found.layouts.expert_parallel.max() == most


def test_an_expert_stays_whole_where_its_ranks_take_the_tensor_ranks():
    cut, whole = (one_layout(data_parallel=2, tensor_parallel=4, expert_parallel=ranks) for ranks in (2, 4))
    asked = job("megatron", model=MODEL)
    assert (expert_tensor_ranks(cut, asked)[0], expert_tensor_ranks(whole, asked)[0]) == (4, 1)


@pytest.mark.parametrize(("ranks", "cut_over"), [(1, 4), (2, 1)])
def test_torchtitan_leaves_experts_whole_once_they_are_divided(ranks, cut_over):
    one = one_layout(data_parallel=2, tensor_parallel=4, expert_parallel=ranks)
    assert expert_tensor_ranks(one, job("fsdp2", model=MODEL))[0] == cut_over


@pytest.mark.parametrize(("ranks", "multiple"), [(1, 1.0), (2, 2.0), (4, 3.0)])
def test_no_rank_gets_more_than_the_tokens_of_all(ranks, multiple):
    asked = job("megatron", model=MODEL, expert_imbalance=3.0)
    assert busiest_rank_multiple(one_layout(data_parallel=4, expert_parallel=ranks), asked)[0] == multiple


@pytest.mark.parametrize(
    ("framework", "rule", "layout"),
    [
        ("megatron", "experts_need_sequence_parallel", {"data_parallel": 2, "tensor_parallel": 2}),
        ("fsdp2", "experts_lie_in_shard_groups", {"data_parallel": 6, "shard_group": 3, "zero_stage": 3}),
        ("deepspeed", "experts_divide_in_stage", {"data_parallel": 2, "zero_stage": 3}),
    ],
)
def test_what_no_stack_does_with_experts_breaks_a_rule(framework, rule, layout):
    asked = job(framework, model=MODEL, global_batch_size=6)
    assert obey(one_layout(expert_parallel=1, **layout), asked).allowed[0]
    assert obey(one_layout(expert_parallel=2, **layout), asked).excluded[rule] == 1


@pytest.mark.parametrize(
    ("framework", "layout", "words"),
    [
        (
            "megatron",
            {"data_parallel": 4, "tensor_parallel": 2, "sequence_parallel": False},
            "expert_parallel 2 beside tensor_parallel 2 needs sequence_parallel",
        ),
        (
            "fsdp2",
            {"data_parallel": 8, "shard_group": 1, "zero_stage": 3},
            "expert_parallel 2 does not divide the 1 ranks of a shard group",
        ),
    ],
)
def test_a_broken_rule_is_told_with_its_degrees(framework, layout, words):
    degrees = {"tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1, "expert_parallel": 2, **layout}
    asked = question(model=MODEL, framework=framework, layout=degrees)
    assert any(words in violation.detail for violation in every_broken_rule(asked))


def test_the_rank_count_that_experts_do_not_divide_is_named():
    layout = {"data_parallel": 2, "tensor_parallel": 2, "pipeline_parallel": 1, "context_parallel": 1}
    for framework, words in (
        ("megatron", "data_parallel x context_parallel x tensor_parallel = 4"),
        ("megatron-deepspeed", "data_parallel x context_parallel = 2"),
    ):
        asked = question(model=GROUPED, framework=framework, gpus=4, layout={**layout, "expert_parallel": 3})
        assert any(words in violation.detail for violation in every_broken_rule(asked))


def test_recurrent_layers_are_not_cut_along_the_sequence():
    config = {
        "model_type": "bamba", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "attn_layer_indices": [1], "mamba_n_heads": 4,
        "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2,
    }  # fmt: skip
    asked = question(
        model=describe_config(config, name="bamba"),
        framework="megatron",
        layout={"context_parallel": 2, "data_parallel": 4},
    )
    assert any(violation.rule == "context_needs_attention" for violation in every_broken_rule(asked))


def test_passes_have_pairs_once_a_pipeline_is_warm():
    one, four, eight, two = (np.array([number]) for number in (1, 4, 8, 2))
    # Of eight micro-batches all forward passes but the first run beside a backward pass.
    assert paired_fraction(one, one, eight)[0] == pytest.approx(7 / 8)
    # Two chunks in four stages: one round of four and one more pass alone of 16.
    assert paired_fraction(four, two, eight)[0] == pytest.approx(11 / 16)
    # A single micro-batch has none.
    assert paired_fraction(one, one, one)[0] == 0.0
