from __future__ import annotations

from benchmarks.famous_runs import words
from tests.benchmarks.famous_runs.records import LAYOUT, REFUSED, planned


def test_a_layout_says_nothing_that_goes_without_saying():
    assert words.layout(LAYOUT) == ("data 2 × tensor 4, ZeRO 1, micro-batch 1, recompute none, sequence parallel")


def test_virtual_stages_are_of_the_pipeline_and_hybrid_groups_are_named():
    found = words.layout({"pipeline_parallel": 4, "virtual_pipeline": 5, "data_parallel": 8, "shard_group": 2})
    assert found == "data 8 × pipeline 4 of virtual stages 5, sharded over 2"


def test_recomputed_modules_are_named():
    assert words.layout({"recompute": {"modules": ["layernorm", "mla_up_proj"]}}) == "recompute layernorm, mla_up_proj"


def test_a_difference_names_what_changes_and_what_it_gains():
    own = planned(1.25, layout={"tensor_parallel": 2, "data_parallel": 4, "sequence_parallel": False})
    assert words.difference(planned(2.5), own, 2.0) == (
        "By its plan the planner's own layout takes 0.50 times as long as the one that ran: data 4 instead of 2, "
        "tensor 2 instead of 4, sequence parallel off instead of on."
    )


def test_the_same_layout_is_said_to_be():
    assert words.difference(planned(), planned(), 2.0) == "The planner chooses the layout that ran."


def test_beside_a_refused_run_stands_what_was_published():
    assert words.difference(REFUSED, planned(3.0), 2.0) == (
        "The planner's own layout is planned at 3 s, 1.50 times the published step."
    )
    assert words.difference(REFUSED, planned(3.0), None) == "The planner's own layout is planned at 3 s."


def test_a_planner_without_a_layout_says_why():
    assert words.difference(planned(), REFUSED, 2.0) == "The planner has no layout of its own: one is no field"


def test_an_exchange_that_is_hidden_is_named():
    assert words.layout({"data_parallel": 8, "overlap": {"expert_parallel": True}}) == (
        "data 8, exchange with experts overlapped"
    )
    assert words.layout({"data_parallel": 8, "overlap": None}) == "data 8"
