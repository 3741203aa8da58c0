"""Formats and batch limits left to choose, and several kinds of GPUs."""

from __future__ import annotations

import dataclasses

import pytest

from plimsoll.planners.ground.errors import ImpossibleLayout, InvalidQuestion
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.questions import AllowedChoices
from plimsoll.planners.serving.planning import plan_serving, plan_serving_fleet
from plimsoll.planners.serving.search.choices import MOST_CHOICES, allowed_choices
from tests.planners.serving.factories import LLAMA_70B, hardware, model, question


def test_every_combination_is_a_question():
    allowed = AllowedChoices(weights=("bf16", "fp8"), kv_cache=("bf16", "fp8"), max_num_seqs=(64, 256, 1024))
    choices = allowed_choices(question(allowed=allowed))
    assert len({(each.weights, each.kv_cache, each.max_num_seqs) for each in choices}) == 12
    assert all(each.allowed is None for each in choices)


def test_what_is_listed_twice_is_one_choice():
    assert len(allowed_choices(question(allowed=AllowedChoices(weights=("bf16", "bf16"))))) == 1


def test_so_many_combinations_are_searched_and_no_more():
    tokens, sequences = tuple(range(1024, 1032)), tuple(range(1, 9))
    edge = AllowedChoices(max_num_batched_tokens=tokens, max_num_seqs=sequences)
    assert len(allowed_choices(question(allowed=edge))) == MOST_CHOICES
    with pytest.raises(InvalidQuestion, match="64"):
        allowed_choices(question(allowed=dataclasses.replace(edge, weights=("bf16", "fp8"))))


def test_a_format_that_fits_is_chosen_over_one_that_does_not():
    # 70B are 131 GiB in bf16 and half of that in fp8; two cards hold 158 less the working memory.
    asked = question(model(LLAMA_70B), gpus=1, max_model_len=4096, allowed=AllowedChoices(weights=("bf16", "fp8")))
    answer = plan_serving(asked)
    assert answer.fits
    assert answer.plan.settings.weights == "fp8"


def test_the_batch_limit_that_serves_more_is_chosen():
    allowed = AllowedChoices(max_num_seqs=(16, 256))
    answer = plan_serving(question(allowed=allowed, input_tokens=256, output_tokens=256))
    assert answer.plan.settings.max_num_seqs == 256


def test_a_choice_that_cannot_be_is_left_out_and_counted():
    # vLLM 0.19 has no int8 cache.
    allowed = AllowedChoices(kv_cache=("int8", "fp8"))
    answer = plan_serving(question(allowed=allowed))
    assert answer.plan.settings.kv_cache == "fp8"
    assert answer.search.layouts_excluded == 1


def test_where_no_choice_can_be_the_first_ones_reason_is_told():
    with pytest.raises(InvalidQuestion) as refused:
        plan_serving(question(allowed=AllowedChoices(kv_cache=("int8", "nvfp4"))))
    assert refused.value.pointer == "/serving/kv_cache"


def test_the_best_card_of_a_fleet_is_chosen_and_all_are_listed():
    small = dataclasses.replace(hardware().gpu, id="small", memory_bytes=24 * GIB, memory_bytes_per_second=1e12)
    questions = (question(gpus=1), dataclasses.replace(question(), hardware=hardware(1, gpu=small)))
    ranked = plan_serving_fleet(questions[::-1])
    assert ranked.chosen == 1
    assert [entry.gpu for entry in ranked.answer.fleet] == ["h100-sxm-80gb", "small"]
    assert ranked.answer.plan == plan_serving(questions[0]).plan


def test_a_card_that_cannot_serve_the_model_is_listed_with_its_reason():
    old = dataclasses.replace(hardware().gpu, id="old", peak_flops_per_second={"fp16": 1e14})
    questions = (dataclasses.replace(question(), hardware=hardware(1, gpu=old)), question())
    entries = plan_serving_fleet(questions).answer.fleet
    assert [entry.gpu for entry in entries] == ["h100-sxm-80gb", "old"]
    assert "bf16" in (entries[1].refusal or "")


def test_cost_ranks_a_fleet_by_dollars():
    def priced(name: str, price: float):
        gpu = dataclasses.replace(hardware().gpu, id=name)
        return question(objective="cost", hardware=hardware(1, gpu=gpu, usd_per_gpu_hour=price))

    ranked = plan_serving_fleet((priced("dear", 9.0), priced("cheap", 2.0)))
    assert [entry.gpu for entry in ranked.answer.fleet] == ["cheap", "dear"]
    costs = [entry.cost_usd_per_million_output_tokens for entry in ranked.answer.fleet]
    # The same card at nine halves of the price.
    assert costs[1] == pytest.approx(4.5 * costs[0])


def test_cost_needs_every_price():
    questions = (
        question(objective="cost", hardware=hardware(1, usd_per_gpu_hour=2.0)),
        question(objective="cost", hardware=hardware(1)),
    )
    with pytest.raises(InvalidQuestion) as refused:
        plan_serving_fleet(questions)
    assert refused.value.pointer == "/hardware/fleet/1/usd_per_gpu_hour"


def test_a_fleet_of_which_none_can_tells_the_first_ones_reason():
    with pytest.raises(ImpossibleLayout):
        plan_serving_fleet((question(layout={"tensor_parallel": 3}), question(layout={"tensor_parallel": 3})))


def test_the_longest_context_is_what_one_request_could_fill():
    kv = plan_serving(question(max_model_len=8192)).plan.kv
    # 8B on one card holds some 400,000 tokens: the model's own 131,072 are the limit.
    assert kv.longest_context_tokens == 131072
    spec = model(LLAMA_70B)
    kv = plan_serving(question(spec, gpus=2, max_model_len=8192, layout={"tensor_parallel": 2})).plan.kv
    assert kv.longest_context_tokens == kv.blocks * 16


@pytest.mark.parametrize(("tokens", "empty"), [(1008, 0), (1009, 15), (1000, 8), (1023, 1)])
def test_the_last_block_of_a_request_stays_partly_empty(tokens: int, empty: int):
    # Blocks of 16 tokens: 1,009 tokens lie in 64 of them, of whose 1,024 places 15 stay empty.
    kv = plan_serving(question(input_tokens=tokens - 8, output_tokens=8)).plan.kv
    assert kv.last_block_waste_fraction == pytest.approx(empty / (-(-tokens // 16) * 16))
