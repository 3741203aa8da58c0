"""Tests of the order of candidates."""

from __future__ import annotations

import dataclasses

from plimsoll.planners.questions import ServiceLevel
from plimsoll.planners.serving.planning import plan_serving
from plimsoll.planners.serving.search.candidates import Candidate
from plimsoll.planners.serving.search.ranking import rank
from plimsoll.planners.serving.search.search import search_fleet
from plimsoll.planners.serving.times.batching import SteadyState
from tests.planners.serving.factories import LLAMA_70B, model, question

LEVEL = ServiceLevel(tpot_seconds=0.01)


def candidate(*, tpot_seconds: float, rate: float = 1.0, meets_concurrency: bool | None = None, **changes) -> Candidate:
    """Return a deployment of one H100 with the latencies and the rate given."""
    found = search_fleet((question(slo=LEVEL, **changes),)).candidates[0]
    state = SteadyState(ttft_seconds=0.1, tpot_seconds=tpot_seconds, requests_per_second=rate, running=1.0)
    return dataclasses.replace(
        found,
        state=state,
        meets_concurrency=meets_concurrency,
        meets_slo=tpot_seconds <= 0.01,
    )


def test_what_keeps_all_that_was_asked_comes_before_what_is_faster():
    kept, faster = candidate(tpot_seconds=0.01, rate=1), candidate(tpot_seconds=0.011, rate=9)
    assert rank(kept) < rank(faster)


def test_what_misses_a_latency_least_comes_before_what_holds_more_requests():
    near = candidate(tpot_seconds=0.014, meets_concurrency=False, concurrency=4)
    far = candidate(tpot_seconds=0.024, meets_concurrency=True, concurrency=4)
    assert rank(near) < rank(far)


def test_requests_that_outrun_the_replicas_keep_no_latency():
    asked = question(requests_per_second=1e4, slo=ServiceLevel(ttft_seconds=1e4, tpot_seconds=1e4))
    answer = plan_serving(asked)
    assert answer.plan.performance.ttft_seconds < 1e4
    assert (answer.meets_concurrency, answer.meets_slo) == (False, False)


def test_what_requests_outrun_comes_last():
    outrun = candidate(tpot_seconds=0.02, meets_concurrency=False, requests_per_second=1.0)
    slow = candidate(tpot_seconds=0.5, meets_concurrency=True, requests_per_second=1.0)
    assert rank(slow) < rank(outrun)


def test_of_those_that_keep_a_request_rate_the_one_that_answers_sooner_comes_first():
    slow = candidate(tpot_seconds=0.009, meets_concurrency=True, requests_per_second=1.0)
    quick = candidate(tpot_seconds=0.003, meets_concurrency=True, requests_per_second=1.0)
    assert rank(quick) < rank(slow)


def test_at_a_request_rate_tensors_are_divided_rather_than_layers():
    # Both keep half a request per second; a token waits for all stages of a pipeline, which read their layers whole.
    asked = question(model(LLAMA_70B), gpus=4, requests_per_second=0.5, input_tokens=2000, output_tokens=300)
    best = search_fleet((asked,)).candidates[0]
    assert (best.replica.degrees.tensor_parallel, best.replica.degrees.pipeline_parallel) == (4, 1)
