"""Tests of the search over degrees and replicas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import ImpossibleLayout, InvalidQuestion, PlanningStopped
from plimsoll.planners.operators.collectives import ALL_REDUCE, collective
from plimsoll.planners.questions import Disaggregation, ServiceLevel, ServingLayoutRequest
from plimsoll.planners.serving.search.ranking import rank
from plimsoll.planners.serving.search.search import search_fleet, search_layouts
from plimsoll.planners.serving.settings.settings import resolve_settings
from tests.planners.serving.factories import H100, LLAMA_70B, MIXTRAL, hardware, model, question


def found(*args, **changes):
    asked = question(*args, **changes)
    return search_layouts(asked, resolve_settings(asked))


def degrees(candidate):
    return candidate.replica.degrees.tensor_parallel, candidate.replica.degrees.pipeline_parallel, candidate.replicas


def test_a_fixed_layout_is_the_only_candidate():
    layout = {"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 2}
    result = found(gpus=8, layout=layout)
    assert [degrees(candidate) for candidate in result.candidates] == [(2, 2, 2)]
    assert (result.considered, result.excluded) == (1, 0)


def test_every_candidate_uses_exactly_the_fixed_number_of_gpus():
    result = found(gpus=8)
    assert {candidate.gpus for candidate in result.candidates} == {8}
    # Tensor 1, 2, 4, 8 with the pipelines whose product divides 8: 4 + 3 + 2 + 1.
    assert result.considered == 10


def test_free_gpus_find_the_fewest_that_fit():
    # 141 GB of weights: two cards of 79 GiB hold them with 2.5 GiB of cache a card, one does not.
    best = found(model(LLAMA_70B), gpus=None).candidates[0]
    assert best.gpus == 2
    assert best.replica.fits


def test_free_gpus_grow_until_the_concurrency_is_held():
    best = found(model(LLAMA_70B), gpus=None, concurrency=1000).candidates[0]
    assert best.meets_concurrency
    held = best.replica.places * best.replicas
    assert held >= 1000
    assert held - best.replica.places < 1000


def test_the_fewest_gpus_of_a_range_are_taken_when_asked_for():
    assert found(gpus=(1, 8), objective="fewest_gpus", concurrency=8).candidates[0].gpus == 1
    assert found(gpus=(4, 8), objective="fewest_gpus", concurrency=8).candidates[0].gpus == 4


def test_throughput_takes_the_whole_range():
    assert found(gpus=(1, 8)).candidates[0].gpus == 8


def test_latency_prefers_tensor_parallelism_to_replicas():
    best = found(gpus=8, objective="latency", concurrency=8).candidates[0]
    assert degrees(best) == (8, 1, 1)


def test_without_a_concurrency_latency_is_judged_on_one_request():
    assert found(gpus=8, objective="latency").candidates[0].concurrency == 1


def test_cost_takes_no_more_gpus_than_pay():
    cheap = found(gpus=(1, 8), objective="cost", concurrency=4).candidates[0]
    fast = found(gpus=(1, 8), objective="throughput", concurrency=4).candidates[0]
    assert cheap.gpus / cheap.output_tokens_per_second <= fast.gpus / fast.output_tokens_per_second
    assert cheap.gpus <= fast.gpus


def test_a_service_level_rules_out_faster_layouts_that_break_it():
    slo = ServiceLevel(tpot_seconds=0.02)
    best = found(gpus=8, concurrency=64, slo=slo).candidates[0]
    assert best.meets_slo
    assert best.state.tpot_seconds <= 0.02


def test_without_a_concurrency_the_highest_that_keeps_the_service_level_is_planned():
    best = found(slo=ServiceLevel(tpot_seconds=0.012), layout={"tensor_parallel": 1}).candidates[0]
    assert best.meets_slo
    assert best.deployment.at(best.concurrency + 1).tpot_seconds > 0.012


def test_a_service_level_that_nothing_keeps_is_said():
    best = found(slo=ServiceLevel(ttft_seconds=0.001)).candidates[0]
    assert best.meets_slo is False
    assert best.replica.fits


def test_where_nothing_was_asked_nothing_is_judged():
    best = found().candidates[0]
    assert (best.meets_concurrency, best.meets_slo) == (None, None)


def test_never_a_best_layout_whose_cache_is_too_small():
    # On four cards of 8 the whole context fits one replica of four ranks and no replica of one.
    result = found(model(LLAMA_70B), gpus=4, max_model_len=131072)
    assert result.candidates[0].replica.fits
    assert any(not candidate.replica.fits for candidate in result.candidates)


def test_one_more_client_than_the_places_is_not_held():
    places = found().candidates[0].deployment.most_running
    assert found(concurrency=places).candidates[0].meets_concurrency is True
    assert found(concurrency=places + 1).candidates[0].meets_concurrency is False


def test_gpus_other_than_the_product_of_the_degrees_are_impossible():
    layout = {"tensor_parallel": 2, "pipeline_parallel": 1, "data_parallel": 1}
    for gpus in (1, 4):
        with pytest.raises(ImpossibleLayout, match="is 2, and gpus is") as caught:
            found(gpus=gpus, layout=layout)
        assert caught.value.pointer == "/layout"
    assert found(gpus=2, layout=layout).candidates


def test_a_degree_that_does_not_divide_the_gpus_is_impossible():
    with pytest.raises(ImpossibleLayout) as caught:
        found(gpus=6, layout={"tensor_parallel": 4})
    assert caught.value.rule == "gpus-product"


def test_a_tensor_degree_that_the_heads_forbid_is_impossible():
    with pytest.raises(ImpossibleLayout) as caught:
        found(gpus=3, layout={"tensor_parallel": 3})
    assert caught.value.pointer == "/layout/tensor_parallel"


@pytest.mark.parametrize(("stages", "possible"), [(32, True), (33, False)])
def test_a_pipeline_has_no_more_stages_than_layers(stages, possible):
    if possible:
        assert found(gpus=stages, layout={"pipeline_parallel": stages}).candidates
        return
    with pytest.raises(ImpossibleLayout) as caught:
        found(gpus=stages, layout={"pipeline_parallel": stages})
    assert caught.value.pointer == "/layout/pipeline_parallel"


@pytest.mark.parametrize("field", ["tensor_parallel", "pipeline_parallel", "data_parallel"])
def test_degrees_are_at_least_one(field):
    with pytest.raises(InvalidQuestion) as caught:
        found(layout={field: 0})
    assert caught.value.pointer == f"/layout/{field}"


@pytest.mark.parametrize("gpus", [0, (4, 2)])
def test_gpus_are_at_least_one_and_a_range_runs_upwards(gpus):
    with pytest.raises(InvalidQuestion) as caught:
        found(gpus=gpus)
    assert caught.value.pointer == "/hardware/gpus"


def test_tensor_ranks_on_several_nodes_are_searched_and_wait_for_the_network():
    # Two nodes of 4: each of 2 all-reduces of 32 layers passes the border between them twice, 14 us each, and sends
    # 2 x 7/8 of 8,192 B at 50 GB/s, where within a node it takes what was measured.
    candidates = found(hardware=hardware(8, gpus_per_node=4), concurrency=1).candidates
    wide = next(each for each in candidates if degrees(each) == (8, 1, 1))
    near = next(each for each in found(gpus=8, concurrency=1).candidates if degrees(each) == (8, 1, 1))
    slower = wide.state.tpot_seconds - near.state.tpot_seconds
    within = 64 * float(collective(H100, "vllm", ALL_REDUCE, 8).seconds(8192))
    assert slower == pytest.approx(64 * (2 * 14e-6 + 2 * 7 / 8 * 8192 / 50e9) - within, rel=0.01)


def test_a_range_looks_at_degrees_that_divide_any_number_within_it():
    # Heads divide by 1, 2, 4 and 8: 12, 6, 3 and 1 pipelines of up to 12 GPUs, of 9 to 12 those that come to one.
    pipelines = {each.replica.degrees.gpus for each in found(gpus=(9, 12)).candidates}
    assert {9, 10, 11, 12} <= pipelines


def test_degrees_that_a_models_experts_forbid_are_left_out_and_not_raised():
    # Eight ranks would leave four of them without one of 4 experts.
    spec = model(MIXTRAL, num_local_experts=4)
    experts = {each.replica.degrees.expert_parallel for each in found(spec, gpus=8, max_model_len=1024).candidates}
    assert experts == {1, 2, 4}


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [10**6, (1, 10**6)])
def test_a_million_gpus_are_searched_as_fast_as_a_hundred(gpus):
    result = found(model(MIXTRAL), gpus=gpus)
    assert result.considered < 5_000


def test_where_nothing_has_a_cache_the_closest_needs_least_of_a_gpu():
    # 141 GB of weights fit 2 H100 not at all at 1 % of the card: both divide them over all GPUs.
    best = found(model(LLAMA_70B), gpus=2, gpu_memory_utilization=0.01).candidates[0]
    assert best.replica.gpus == 2
    assert not best.replica.fits


def test_experts_and_attention_ranks_are_searched_for_mixtures_alone():
    dense = {candidate.replica.degrees.attention_data_parallel for candidate in found(gpus=4).candidates}
    mixture = found(model(MIXTRAL), gpus=4).candidates
    assert dense == {1}
    assert {candidate.replica.degrees.attention_data_parallel for candidate in mixture} == {1, 2, 4}
    assert {candidate.replica.degrees.expert_parallel for candidate in mixture} == {1, 2, 4}


def test_fixed_degrees_that_a_model_forbids_name_the_reason():
    with pytest.raises(ImpossibleLayout, match="no experts") as caught:
        found(gpus=4, layout={"expert_parallel": 2})
    assert caught.value.pointer == "/layout/expert_parallel"


def test_the_layout_counts_attention_ranks_among_its_gpus():
    layout = {"tensor_parallel": 2, "attention_data_parallel": 2, "pipeline_parallel": 1, "data_parallel": 1}
    assert found(model(MIXTRAL), gpus=4, layout=layout).candidates[0].gpus == 4
    with pytest.raises(ImpossibleLayout, match="is 4, and gpus is 8"):
        found(model(MIXTRAL), gpus=8, layout=layout)


def test_a_search_that_nobody_waits_for_stops_before_its_next_replica():
    # Eight GPUs: ten replicas (above), of which two are looked at.
    asked = question(gpus=8)
    answers = iter([False, False, True])
    with pytest.raises(PlanningStopped):
        search_layouts(asked, resolve_settings(asked), lambda: next(answers))
    assert next(answers, None) is None


def test_a_search_of_several_gpus_does_not_take_its_end_for_a_refusal():
    answers = iter([False, True])
    with pytest.raises(PlanningStopped):
        search_fleet([question(gpus=1), question(gpus=1)], lambda: next(answers))


def test_dividing_replicas_into_pools_stops_once_nobody_waits():
    # One replica's degrees, and then a division for each of 1 to 7 prefilling replicas.
    layout = {"tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 8}
    asked = question(gpus=8, layout=layout, disaggregated=Disaggregation())
    answers = iter([False, False, False, True])
    with pytest.raises(PlanningStopped):
        search_layouts(asked, resolve_settings(asked), lambda: next(answers))
    assert next(answers, None) is None


@pytest.mark.parametrize("gpus", [1, 3, (1, 8)])
def test_models_without_attention_are_served_on_any_number_of_gpus(gpus):
    # Falcon Mamba has no heads, whose number bounds the tensor ranks of others.
    config = dict(catalogue().model("tiiuae/falcon-mamba-7b").config)
    result = found(describe_config(config, name="mamba"), gpus=gpus, max_model_len=4096)
    assert all(candidate.replica.fits for candidate in result.candidates)
    assert result.candidates


def test_copies_of_a_cache_are_divided_where_that_gains():
    # DeepSeek-R1's latents stand whole on each of eight tensor-parallel ranks, which hold eight times as many tokens
    # where they divide sequences; few short requests gain nothing by it.
    name = "deepseek-ai/DeepSeek-R1"
    asked = question(
        describe_config(catalogue().model(name).config, name=name),
        hardware=replace(hardware(gpus=8), gpu=catalogue().gpu("h200-sxm-141gb")),
        weights="fp8",
        engine_version=None,
        max_model_len=131_072,
    )
    long = replace(asked, concurrency=64, input_tokens=60_000, output_tokens=500)
    best = search_fleet([long]).candidates[0]
    assert best.replica.degrees.decode_context_parallel > 1
    fixed = replace(long, layout=ServingLayoutRequest(tensor_parallel=8, decode_context_parallel=8))
    assert rank(best) <= rank(search_fleet([fixed]).candidates[0])
    short = search_fleet([replace(asked, concurrency=4, input_tokens=500, output_tokens=500)]).candidates[0]
    assert short.replica.degrees.decode_context_parallel == 1


def test_a_level_that_no_number_of_gpus_keeps_is_not_sought_in_every_odd_division():
    # Of up to 2,048 GPUs of a mixture there are a hundred thousand divisions; doubled ones and those of few GPUs tell.
    searched = search_fleet((question(model(MIXTRAL), gpus=None, concurrency=7, slo=ServiceLevel(ttft_seconds=1e-6)),))
    assert searched.considered + searched.excluded < 10_000
    assert not searched.candidates[0].is_satisfying


def test_an_odd_degree_that_is_fixed_is_looked_at_beyond_few_gpus():
    layout = {"attention_data_parallel": 72, "tensor_parallel": 1, "expert_parallel": 72, "pipeline_parallel": 1}
    spec = model(MIXTRAL, num_local_experts=144)
    asked = question(
        spec, gpus=(1, 144), layout=layout, concurrency=72, objective="fewest_gpus", slo=ServiceLevel(ttft_seconds=1e-6)
    )
    assert search_fleet((asked,)).candidates[0].replica.gpus == 72


def test_gpus_that_the_fixed_degrees_do_not_divide_are_what_is_refused():
    # 5 GPUs are no multiple of a pipeline of 2; that experts do not divide over 5 ranks was never asked.
    with pytest.raises(ImpossibleLayout, match="With the fixed degrees no layout uses 5 GPUs"):
        found(model(MIXTRAL), gpus=5, layout={"tensor_parallel": 1, "pipeline_parallel": 2})
    with pytest.raises(ImpossibleLayout, match="32 attention heads do not divide by 5"):
        found(model(MIXTRAL), gpus=8, layout={"tensor_parallel": 5, "pipeline_parallel": 1})
