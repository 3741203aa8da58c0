"""The Pareto front of cost against latency, and what it never holds."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from plimsoll.planners.questions import AllowedChoices, ServiceLevel
from plimsoll.planners.serving.answer import ServingAlternative, ServingAnswer
from plimsoll.planners.serving.planning import plan_serving, plan_serving_fleet
from plimsoll.planners.serving.search.front import MOST_POINTS, pareto_front
from plimsoll.planners.serving.search.search import search_fleet
from tests.planners.serving.factories import LLAMA_70B, hardware, model, question


def front_of(answer: ServingAnswer) -> tuple[ServingAlternative, ...]:
    return tuple(other for other in answer.alternatives if other.is_on_front)


def asked(**changes: Any):
    return question(model(LLAMA_70B), gpus=8, input_tokens=1024, output_tokens=256, **changes)


def test_the_front_runs_from_the_fastest_to_the_cheapest():
    front = front_of(plan_serving(asked()))
    assert len(front) > 3
    for faster, cheaper in itertools.pairwise(front):
        assert faster.request_seconds < cheaper.request_seconds
        assert faster.gpu_seconds_per_million_output_tokens > cheaper.gpu_seconds_per_million_output_tokens


def test_no_candidate_at_any_load_is_better_in_both_than_a_point_of_the_front():
    candidates = search_fleet((asked(),)).candidates
    front = pareto_front(candidates)
    for candidate in candidates:
        if candidate.state is None:
            continue
        seconds = candidate.state.ttft_seconds + 255 * candidate.state.tpot_seconds
        assert not any(seconds < point.request_seconds and candidate.cost < point.cost for point in front)


def test_a_long_front_is_thinned_to_its_ends_and_what_lies_evenly_between():
    limits = AllowedChoices(max_num_seqs=(3, 6, 12, 24, 48, 96, 192, 384))
    front = pareto_front(search_fleet((question(gpus=8, max_model_len=1024, allowed=limits),)).candidates)
    assert len(front) == MOST_POINTS
    assert front[0].concurrency == 1


def test_the_front_keeps_the_service_level():
    level = ServiceLevel(tpot_seconds=0.03)
    front = front_of(plan_serving(asked(slo=level)))
    assert front
    assert all(point.tpot_seconds <= 0.03 for point in front)


def test_at_an_asked_concurrency_layouts_alone_differ():
    front = front_of(plan_serving(asked(concurrency=32)))
    assert {point.concurrency for point in front} <= {32}


def test_nothing_that_the_cache_refuses_lies_on_the_front():
    # 70B in bf16 is 131 GiB: nothing below two cards of 79 GiB holds it.
    spec = model(LLAMA_70B)
    found = search_fleet((question(spec, gpus=(1, 8), input_tokens=1024, output_tokens=256),))
    front = pareto_front(found.candidates)
    assert any(not candidate.replica.fits for candidate in found.candidates)
    assert all(point.candidate.replica.fits for point in front)
    for point in front:
        deployment = point.candidate.deployment
        assert deployment is not None
        assert point.concurrency <= deployment.most_running


def test_one_layout_alone_has_no_alternatives():
    fixed = {"tensor_parallel": 8, "pipeline_parallel": 1, "data_parallel": 1}
    assert plan_serving(asked(layout=fixed)).alternatives == ()


def test_a_price_makes_the_cost_dollars():
    priced = dataclasses.replace(hardware(8), usd_per_gpu_hour=3.6)
    front = front_of(plan_serving(dataclasses.replace(asked(), hardware=priced)))
    for point in front:
        # 3.60 dollars an hour are a thousandth of a dollar a second.
        assert point.cost_usd_per_million_output_tokens == pytest.approx(
            point.gpu_seconds_per_million_output_tokens / 1000
        )


def test_cards_without_prices_are_not_set_against_each_other():
    slow = dataclasses.replace(hardware().gpu, id="slow", memory_bytes_per_second=1e12)
    questions = (asked(), dataclasses.replace(asked(), hardware=hardware(8, gpu=slow)))
    assert {point.gpu for point in front_of(plan_serving_fleet(questions).answer)} == {"h100-sxm-80gb"}
    priced = tuple(
        dataclasses.replace(each, hardware=dataclasses.replace(each.hardware, usd_per_gpu_hour=price))
        for each, price in zip(questions, (10.0, 0.1), strict=True)
    )
    assert {point.gpu for point in front_of(plan_serving_fleet(priced).answer)} == {"h100-sxm-80gb", "slow"}
