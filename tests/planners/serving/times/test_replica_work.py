"""Tests of a replica's work: whose operators it is made of, and how they follow its degrees."""

from __future__ import annotations

import dataclasses

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.replica import plan_replica, work_of
from plimsoll.planners.serving.settings.settings import resolve_settings
from plimsoll.planners.serving.times.replica_work import ReplicaWork, replica_work
from tests.planners.serving.factories import GPT2, MIXTRAL, hardware, model, question


def work_at(*, spec=None, gpus=None, tensor_parallel=1, pipeline_parallel=1, attention=1, experts=1, **changes):
    """Return a replica's work with these degrees; `changes` are the question's."""
    ranks = tensor_parallel * pipeline_parallel * attention
    asked = question(spec, gpus=gpus or ranks, **changes)
    settings = resolve_settings(asked)
    degrees = Degrees(
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        attention_data_parallel=attention,
        expert_parallel=experts,
    )
    return work_of(asked, settings, plan_replica(asked, settings, degrees))


def operators_of(work: ReplicaWork) -> set[str]:
    return {each.operator for each in work.evidence}


def test_a_rank_that_exchanges_nothing_has_no_exchanges():
    work = work_at()
    assert (work.exchanged, work.exchanges, work.experts) == (None, 0, None)
    assert operators_of(work) == {"products", "token_attention"}


def test_an_exchange_waits_for_every_doubling_of_its_ranks():
    # 2 sums a layer of 32, over 8 ranks: log2(8) = 3.
    assert work_at(tensor_parallel=8).exchanges == 2 * 32 * 3


def test_a_mixtures_experts_see_the_tokens_of_all_ranks_of_attention():
    work = work_at(spec=model(MIXTRAL), attention=4, experts=4, weights="fp8")
    assert work.experts is not None
    assert work.exchanged is not None
    expected = work.dense.at(3) + work.experts.at(12) + work.exchanged.at(3)
    assert work.linear_seconds(3) == pytest.approx(expected)


def test_a_prompt_among_others_pays_for_no_weights_that_are_read_anyway():
    work = work_at()
    full = work.linear_seconds(8192) - work.linear_seconds(1)
    assert work.prompt_pass_seconds(2048) == pytest.approx(full / 4 + work.prompt_attention_seconds(2048))
    assert work.prompt_pass_seconds(8192) < work.prompt_alone_seconds(8192)


def test_a_prompt_alone_is_computed_batch_by_batch():
    work = work_at()
    one = work.linear_seconds(8192) + work.gap_seconds
    assert work.prompt_alone_seconds(16384) == pytest.approx(2 * one + work.prompt_attention_seconds(16384))
    short = work.linear_seconds(100) + work.gap_seconds
    assert work.prompt_alone_seconds(100) == pytest.approx(short + work.prompt_attention_seconds(100))


def test_a_prompt_takes_no_less_than_its_operations_at_the_peak_rate():
    # Llama-3.1-8B without its embedding and head: 6.98e9 parameters, two operations each.
    work = work_at()
    assert work.prompt_pass_seconds(4096) > 4096 * 2 * 6.98e9 / 989.4e12


def test_a_pipeline_hands_hidden_states_over():
    work = work_at(pipeline_parallel=4)
    # Hidden states and residual: 2 x 4,096 x 2 B three times over NVLink.
    assert work.hop_seconds(10) == pytest.approx(10 * 3 * 2 * 4096 * 2 / 450e9)
    assert work.slowest_stage_part > 1 / 4


def test_stages_on_other_nodes_hand_over_by_the_network():
    work = work_at(tensor_parallel=2, pipeline_parallel=4, hardware=hardware(8, gpus_per_node=4))
    assert work.stage_link_bytes_per_second == 50e9
    # One border between two nodes: one message's start.
    assert work.network_seconds == pytest.approx(14e-6)


@pytest.mark.parametrize(
    ("engine", "version", "overlaps"),
    [("vllm", "0.12", False), ("vllm", "0.14", True), ("sglang", None, True), ("tensorrt-llm", None, True)],
)
def test_releases_differ_in_whether_the_host_works_ahead(engine, version, overlaps):
    assert work_at(engine=engine, engine_version=version).overlaps_host is overlaps


def test_a_card_without_tables_says_so():
    assert work_at().is_own_card
    near = work_at(hardware=hardware(1, gpu=catalogue().gpu("rtx-4090-24gb")), max_model_len=1024)
    assert not near.is_own_card
    assert {each.card for each in near.evidence} == {"l40s-48gb"}


def test_a_tied_head_is_multiplied_by_too():
    assert work_at(spec=model(GPT2), max_model_len=1024).head.at(1) > 768 * 50257 * 2 / 3.35e12


def test_a_site_that_takes_longer_for_operators_takes_longer_for_all_of_them():
    work = work_at(tensor_parallel=2)
    step = dataclasses.replace(work.efficiency.step, operators=2.0, exchanges=3.0)
    slow = dataclasses.replace(work, efficiency=dataclasses.replace(work.efficiency, step=step))
    assert work.exchanged is not None
    assert slow.linear_seconds(64) == pytest.approx(2 * work.dense.at(64) + 3 * work.exchanged.at(64))


def test_an_engine_whose_speed_is_not_described_has_no_work():
    asked = question(engine="transformers", engine_version=None)
    settings = resolve_settings(asked)
    replica = plan_replica(asked, settings, Degrees())
    with pytest.raises(NotYetAvailable, match="speed of transformers"):
        replica_work(asked.model, settings, asked.hardware, replica.stages, Degrees())


def test_layouts_that_no_public_run_had_have_bands_twice_as_wide():
    plain, staged = work_at(tensor_parallel=2), work_at(pipeline_parallel=2)
    over_nodes = work_at(tensor_parallel=16, gpus=16)
    assert (plain.unseen, staged.unseen) == ((), ("pipeline stages",))
    assert over_nodes.unseen == ("a stage's ranks on several nodes",)
    for work in (staged, over_nodes):
        assert work.token_band.high == pytest.approx(plain.token_band.high**2)
        assert work.first_token_band.low == pytest.approx(plain.first_token_band.low**2)
