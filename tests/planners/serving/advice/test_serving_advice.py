"""Tests of the offered changes."""

from __future__ import annotations

import dataclasses
import math

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import PlanningStopped
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.questions import ServiceLevel
from plimsoll.planners.serving.planning import plan_serving
from tests.planners.serving.factories import LLAMA_70B, hardware, model, question

ONE_CARD = {"tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 1}


def offers(answer):
    return {field: offer for offer in answer.advice for field in offer.change}


def test_nothing_is_advised_where_nothing_is_lacking():
    assert plan_serving(question()).advice == ()


def test_a_70b_on_one_card_is_offered_fewer_bits_or_more_cards():
    answer = plan_serving(question(model(LLAMA_70B), layout=ONE_CARD))
    assert not answer.fits
    assert {"serving.weights", "hardware.gpus"} <= offers(answer).keys()
    assert all(offer.fits for offer in answer.advice)


def test_each_offer_holds_when_it_is_followed():
    asked = question(model(LLAMA_70B), layout=ONE_CARD)
    int4 = next(offer for offer in plan_serving(asked).advice if offer.change == {"serving.weights": "int4"})
    followed = plan_serving(dataclasses.replace(asked, weights="int4"))
    assert followed.fits
    assert (int4.kv_tokens, int4.peak_bytes) == (followed.plan.kv.tokens, followed.plan.memory.peak_bytes)


def test_8_bits_are_offered_before_more_cards_and_4_bits_last():
    # 810 GB in 16 bits take 16 cards of 79 GiB, 406 GB in 8 bits take 8.
    large = model(LLAMA_70B, hidden_size=16384, intermediate_size=53248, num_hidden_layers=126, num_attention_heads=128)
    changes = [offer.change for offer in plan_serving(question(large, gpus=4)).advice]
    asked = [(change.get("hardware.gpus"), change.get("serving.weights")) for change in changes]
    assert asked == [(8, "fp8"), (16, None), (None, "int4")]


def test_weights_in_8_bits_that_help_alone_are_not_offered_with_more_cards():
    answer = plan_serving(question(model(LLAMA_70B), layout=ONE_CARD, max_model_len=2048, kv_cache="fp8"))
    offered = [offer.change for offer in answer.advice]
    assert {"serving.weights": "fp8"} in offered
    assert not any("serving.weights" in change and "hardware.gpus" in change for change in offered)


def test_a_context_too_long_is_offered_the_longest_that_fits():
    # 54 GiB of cache at 128 KiB a token hold about 440,000 tokens, less than half the context.
    asked = question(model(max_position_embeddings=1_000_000), max_model_len=1_000_000, layout=ONE_CARD)
    answer = plan_serving(asked)
    shorter = offers(answer)["serving.max_model_len"].change["serving.max_model_len"]
    assert not answer.fits
    assert shorter % 1024 == 0
    assert plan_serving(dataclasses.replace(asked, max_model_len=shorter)).fits
    assert not plan_serving(dataclasses.replace(asked, max_model_len=shorter + 2048)).fits


def test_a_cache_in_fp8_is_offered_where_it_holds_the_concurrency():
    # Requests of 1,024 tokens in and out hold half their answers on average: a third more run than at their end.
    held = plan_serving(question(layout=ONE_CARD)).plan.kv.requests_held
    assert plan_serving(question(layout=ONE_CARD, concurrency=held * 4 // 3)).meets_concurrency
    answer = plan_serving(question(layout=ONE_CARD, concurrency=held * 4 // 3 + 2))
    assert answer.meets_concurrency is False
    assert offers(answer)["serving.kv_cache"].kv_tokens > answer.plan.kv.tokens


def test_a_shared_card_is_offered_the_utilization_that_is_free():
    # Others hold 20 of 79.19 GiB; graphs take 0.87 outside the claim: (59.19 - 0.87) / 79.19 = 73 %.
    asked = question(hardware=hardware(used_bytes=20 * GIB))
    answer = plan_serving(asked)
    assert not answer.fits
    assert offers(answer)["serving.gpu_memory_utilization"].change == {"serving.gpu_memory_utilization": 0.73}
    assert plan_serving(dataclasses.replace(asked, gpu_memory_utilization=0.73)).fits
    assert not plan_serving(dataclasses.replace(asked, gpu_memory_utilization=0.74)).fits


def test_another_division_is_offered_for_a_service_level():
    asked = question(gpus=8, layout={"tensor_parallel": 1}, concurrency=8, slo=ServiceLevel(tpot_seconds=0.005))
    answer = plan_serving(asked)
    assert answer.meets_slo is False
    assert offers(answer)["layout.tensor_parallel"].change["layout.tensor_parallel"] > 1


def test_only_the_fewest_of_more_gpus_are_offered_with_their_division():
    answer = plan_serving(question(model(LLAMA_70B), layout=ONE_CARD))
    offered = [offer for offer in answer.advice if "hardware.gpus" in offer.change]
    assert {offer.gpus for offer in offered} == {2}
    for offer in offered:
        degrees = [value for field, value in offer.change.items() if field.startswith("layout.")]
        assert math.prod(degrees) == 2


def test_a_pipeline_in_a_node_is_offered_after_tensor_parallelism_that_a_larger_share_makes_room_for():
    # 141 GB on two cards of 79 GiB: with 0.92 of each only a pipeline has room, whose stages wait for one another.
    answer = plan_serving(question(model(LLAMA_70B), layout=ONE_CARD))
    faster, pipeline = [offer for offer in answer.advice if offer.gpus == 2]
    assert faster.change["serving.gpu_memory_utilization"] == 0.95
    assert (faster.change["layout.tensor_parallel"], pipeline.change["layout.pipeline_parallel"]) == (2, 2)
    assert faster.tpot_seconds < pipeline.tpot_seconds


def test_a_plan_that_pipelines_in_a_node_is_offered_tensor_parallelism_though_nothing_is_lacking():
    answer = plan_serving(question(model(LLAMA_70B), gpus=2, concurrency=4))
    assert (answer.meets, answer.plan.layout.pipeline_parallel) == (True, 2)
    (offer,) = answer.advice
    assert offer.change["layout.tensor_parallel"] == 2
    assert offer.tpot_seconds < answer.plan.performance.tpot_seconds


def test_what_still_misses_a_service_level_is_not_offered_for_it():
    # Two cards take 7 ms a token and more; fewer bits help, and no number of cards reaches a microsecond.
    slow = plan_serving(question(gpus=2, concurrency=8, slo=ServiceLevel(tpot_seconds=1e-6)))
    assert slow.meets_slo is False
    (offer,) = slow.advice
    assert offer.change.keys() == {"serving.slo.tpot_seconds"}
    assert "No other settings or formats were found" in offer.reason
    assert "up to 64" in offer.reason


def test_what_makes_a_model_fit_and_misses_the_level_says_what_it_misses():
    answer = plan_serving(question(model(LLAMA_70B), layout=ONE_CARD, slo=ServiceLevel(ttft_seconds=1e-4)))
    assert not answer.fits
    assert answer.advice
    for offer in answer.advice:
        assert (offer.fits, offer.meets) == (True, False)
        assert "still misses" in offer.reason


def test_a_larger_batch_is_offered_where_the_cache_holds_more_than_run():
    answer = plan_serving(question(max_num_seqs=16, concurrency=40))
    assert offers(answer)["serving.max_num_seqs"].change == {"serving.max_num_seqs": 40}


def test_the_least_larger_share_is_offered_that_holds_the_load():
    asked = question(gpu_memory_utilization=0.3, concurrency=64, layout=ONE_CARD)
    value = offers(plan_serving(asked))["serving.gpu_memory_utilization"].change["serving.gpu_memory_utilization"]
    assert plan_serving(dataclasses.replace(asked, gpu_memory_utilization=value)).meets
    assert not plan_serving(dataclasses.replace(asked, gpu_memory_utilization=value - 0.01)).meets


def test_a_share_above_0_95_is_not_offered():
    answer = plan_serving(question(gpu_memory_utilization=0.94, concurrency=10_000, layout=ONE_CARD))
    assert "serving.gpu_memory_utilization" not in offers(answer)


def test_the_fewest_gpus_are_named_where_they_are_what_is_wanted():
    # Twelve times the load of a card takes twelve cards: one of 16 in whole nodes, the literal number for the fewest.
    held = plan_serving(question(max_num_seqs=16)).plan.settings.max_num_seqs
    asked = question(max_num_seqs=16, concurrency=12 * held, layout=ONE_CARD)
    assert gpus_offered(asked) == [16]
    assert gpus_offered(dataclasses.replace(asked, objective="fewest_gpus")) == [12]


def gpus_offered(asked):
    return [offer.gpus for offer in plan_serving(asked).advice if "hardware.gpus" in offer.change]


@pytest.mark.parametrize(
    ("asked", "degree"),
    [
        # Four key-value heads leave each of eight tensor-parallel ranks half of one, which two of them can divide.
        (ONE_CARD, "decode_context_parallel"),
        (ONE_CARD | {"decode_context_parallel": 1}, "attention_data_parallel"),
    ],
)
def test_a_mixture_s_further_degrees_are_named_among_the_others(asked, degree):
    name = "Qwen/Qwen3-235B-A22B"
    mixture = describe_config(catalogue().model(name).config, name=name)
    offer = offers(plan_serving(question(mixture, layout=asked)))["hardware.gpus"]
    layout = {field.removeprefix("layout."): value for field, value in offer.change.items() if "layout." in field}
    assert layout[degree] > 1
    followed = plan_serving(question(mixture, gpus=offer.change["hardware.gpus"], layout=asked | layout))
    assert (offer.kv_tokens, offer.peak_bytes) == (followed.plan.kv.tokens, followed.plan.memory.peak_bytes)


def test_a_model_far_too_large_for_one_card_is_offered_as_many_as_it_takes():
    # Llama-3.1-405B in bf16 is 756 GiB: more than 8 cards of 79, and no format of it fits one.
    large = model(LLAMA_70B, hidden_size=16384, intermediate_size=53248, num_hidden_layers=126, num_attention_heads=128)
    offer = offers(plan_serving(question(large, layout=ONE_CARD)))["hardware.gpus"]
    assert offer.fits
    assert offer.change["hardware.gpus"] == 16


def test_free_gpus_are_offered_no_more():
    slo = ServiceLevel(ttft_seconds=0.001)
    assert "hardware.gpus" not in offers(plan_serving(question(gpus=None, slo=slo)))


def test_a_batch_whose_states_take_the_card_is_offered_smaller():
    # Qwen3-Next on 2 cards: 36 layers of 32 x 128 x 128 elements in 16 bits, halved: 18 MiB a request at the least,
    # 36 GiB for 2,048 of them, where weights of 37 GiB leave less.
    spec = describe_config(catalogue().model("Qwen/Qwen3-Next-80B-A3B-Instruct").config, name="Qwen3-Next")
    asked = question(
        spec, gpus=2, engine="tensorrt-llm", engine_version=None, weights="fp8", layout={"tensor_parallel": 2}
    )
    answer = plan_serving(asked)
    assert not answer.fits
    (offer,) = [advice for advice in answer.advice if "serving.max_num_seqs" in advice.change]
    assert offer.fits
    assert offer.change["serving.max_num_seqs"] < 2048


def test_no_change_is_tried_once_nobody_waits():
    # A 70B does not fit one card: the search is over after its one replica, and the advice would begin.
    answers = iter([False, True])
    with pytest.raises(PlanningStopped):
        plan_serving(question(model(LLAMA_70B), gpus=1, layout=ONE_CARD), lambda: next(answers))
    assert next(answers, None) is None
