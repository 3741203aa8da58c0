"""Tests of the search over divisions of replicas into pools."""

from __future__ import annotations

import dataclasses

import pytest

from plimsoll.planners.ground.errors import ImpossibleLayout
from plimsoll.planners.ground.hardware import GpuCount
from plimsoll.planners.questions import Disaggregation, ServiceLevel
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.replica import plan_replica, work_of
from plimsoll.planners.serving.search.candidates import judged
from plimsoll.planners.serving.search.divisions import Pools
from plimsoll.planners.serving.search.ranking import rank
from plimsoll.planners.serving.search.search import search_layouts
from plimsoll.planners.serving.settings.settings import resolve_settings
from plimsoll.planners.serving.times.disaggregation import MOST_LOAD, DisaggregatedDeployment
from tests.planners.serving.factories import LLAMA_70B, hardware, model, question

LAYOUT = {"tensor_parallel": 1, "pipeline_parallel": 1}
LENGTHS = {"input_tokens": 2048, "output_tokens": 256}
UP_TO_64 = GpuCount(minimum=1, maximum=64, is_free=True)


def pools(asked) -> Pools:
    settings = resolve_settings(asked)
    replica = plan_replica(asked, settings, Degrees())
    return Pools(
        question=asked,
        asked=asked.disaggregated,
        settings=settings,
        replica=replica,
        work=work_of(asked, settings, replica),
        entry=0,
        should_stop=lambda: False,
    )


def divided(*, gpus=16, disaggregated=None, **changes):
    return question(gpus=gpus, layout=LAYOUT, disaggregated=disaggregated or Disaggregation(), **{**LENGTHS, **changes})


def best(asked):
    return search_layouts(asked, resolve_settings(asked)).candidates[0]


def every(asked, replicas):
    """Return all divisions, best first, as trying each of them tells."""
    kind = pools(asked)
    deployments = [
        DisaggregatedDeployment(
            work=kind.work,
            places=kind.replica.places,
            replicas=replicas,
            traffic=kind.settings.traffic,
            prefill_replicas=prefill,
            # 2,048 tokens x 128 KiB at 450 GB/s within a node of 8, else at 50.
            transfer_seconds=2048 * 128 * 1024 / (450e9 if replicas <= 8 else 50e9),
        )
        for prefill in range(1, replicas)
    ]
    return sorted(
        (judged(asked, kind.settings, kind.replica, replicas, deployment) for deployment in deployments), key=rank
    )


@pytest.mark.parametrize("objective", ["throughput", "latency", "cost", "fewest_gpus"])
@pytest.mark.parametrize("load", [{}, {"concurrency": 500}, {"requests_per_second": 30.0}])
@pytest.mark.parametrize(
    "slo", [None, ServiceLevel(ttft_seconds=0.2, tpot_seconds=0.009), ServiceLevel(ttft_seconds=0.01)]
)
def test_halving_finds_what_trying_every_division_finds(objective, load, slo):
    asked = divided(gpus=7, objective=objective, slo=slo, **load)
    assert rank(best(asked)) == pytest.approx(rank(every(asked, 7)[0]), rel=1e-6)


def test_the_best_division_for_a_flood_is_where_the_slower_pool_is_fastest():
    # More clients than any division bears: the rate is the lesser of what p and 16 - p replicas bear, so that
    # the best p is a neighbour of where both are equal: 0.98 p / prompt = (16 - p) m with m of one decoding replica.
    found = best(divided(concurrency=10**6))
    one = found.deployment
    decode = one.places / (255 * one.decode_pace.token_seconds(one.places))
    prefill = MOST_LOAD / one.pace.prompt_seconds
    assert abs(one.prefill_replicas - 16 * decode / (prefill + decode)) < 1


def test_of_divisions_that_bear_a_rate_the_soonest_answer_is_taken():
    asked = divided(requests_per_second=30.0)
    borne = [candidate.state for candidate in every(asked, 16) if candidate.meets_concurrency]
    soonest = min(state.ttft_seconds + 255 * state.tpot_seconds for state in borne)
    state = best(asked).state
    assert state.ttft_seconds + 255 * state.tpot_seconds == pytest.approx(soonest)


def test_a_large_number_of_replicas_asks_for_few_divisions():
    kind = pools(divided(requests_per_second=30.0))
    list(kind.candidates(range(100_000, 100_001)))
    # Two neighbours at each of 17 halvings, four more around the last, and both ends.
    assert len(kind.seen) <= 2 * 17 + 4 + 2


def test_without_a_number_of_gpus_the_fewest_that_bear_the_rate_are_divided():
    free = dataclasses.replace(hardware(1), gpus=UP_TO_64)
    asked = divided(hardware=free, requests_per_second=60.0)
    found = best(asked)
    assert found.is_satisfying
    assert found.replicas > 2
    assert not any(candidate.is_satisfying for candidate in every(asked, found.replicas - 1))


def test_two_replicas_are_the_fewest_that_divide():
    free = dataclasses.replace(hardware(1), gpus=UP_TO_64)
    assert best(divided(hardware=free, concurrency=1)).replicas == 2
    with pytest.raises(ImpossibleLayout, match="cannot be divided"):
        best(divided(gpus=1))


def test_a_rate_that_no_number_bears_is_answered_by_the_fewest():
    free = dataclasses.replace(hardware(1), gpus=UP_TO_64)
    found = best(divided(hardware=free, requests_per_second=1e6))
    assert (found.replicas, found.meets_concurrency) == (2, False)


@pytest.mark.parametrize(
    ("asked", "replicas", "prefill"),
    [((3, None), 16, 3), ((None, 3), 16, 13), ((3, 13), 16, 3)],
)
def test_a_pool_that_is_asked_for_is_given(asked, replicas, prefill):
    found = best(divided(disaggregated=Disaggregation(prefill_gpus=asked[0], decode_gpus=asked[1])))
    assert (found.replicas, found.deployment.prefill_replicas) == (replicas, prefill)


def test_pools_that_are_asked_for_make_the_number_of_gpus():
    free = dataclasses.replace(hardware(1), gpus=UP_TO_64)
    found = best(divided(hardware=free, disaggregated=Disaggregation(prefill_gpus=2, decode_gpus=3)))
    assert found.gpus == 5


def test_a_pool_holds_whole_replicas():
    asked = question(gpus=8, layout={**LAYOUT, "tensor_parallel": 2}, disaggregated=Disaggregation(prefill_gpus=3))
    with pytest.raises(ImpossibleLayout, match="cannot be divided"):
        best(asked)


def test_a_replica_that_does_not_fit_is_divided_once():
    # 141 GB of weights on one card of 79 GiB.
    asked = question(model(LLAMA_70B), gpus=8, layout=LAYOUT, disaggregated=Disaggregation())
    found = search_layouts(asked, resolve_settings(asked)).candidates
    assert [candidate.state for candidate in found] == [None]
