"""Tests of prefill and decode on replicas of their own."""

from __future__ import annotations

import pytest

from plimsoll.planners.ground.errors import ImpossibleLayout, NotYetAvailable
from plimsoll.planners.questions import Disaggregation
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.planning import plan_serving
from plimsoll.planners.serving.replica import plan_replica, work_of
from plimsoll.planners.serving.settings.settings import resolve_settings
from plimsoll.planners.serving.times.batching import Deployment
from plimsoll.planners.serving.times.disaggregation import MOST_LOAD, DisaggregatedDeployment
from plimsoll.planners.serving.times.pace import pace_of
from plimsoll.planners.serving.traffic import Traffic
from tests.planners.serving.factories import hardware, model, question

ASKED = question()
SETTINGS = resolve_settings(ASKED)
WORK = work_of(ASKED, SETTINGS, plan_replica(ASKED, SETTINGS, Degrees()))
TRAFFIC = Traffic(input_tokens=4096, output_tokens=512)


def pools(prefill=1, decode=1, places=64) -> DisaggregatedDeployment:
    return DisaggregatedDeployment(
        work=WORK,
        places=places,
        replicas=prefill + decode,
        traffic=TRAFFIC,
        prefill_replicas=prefill,
        transfer_seconds=0.01,
    )


def test_a_lone_request_waits_for_its_prompt_and_its_caches_way():
    seen = pools().at_rate(1e-6)
    assert seen.ttft_seconds == pytest.approx(pace_of(WORK, TRAFFIC).first_token_seconds(1) + 0.01, rel=1e-4)


def test_decoding_is_not_interrupted_by_prompts():
    both = Deployment(work=WORK, places=64, replicas=1, traffic=TRAFFIC)
    assert pools().at(32).tpot_seconds < both.at(32).tpot_seconds


def test_the_slower_pool_bounds_the_rate():
    prefill = MOST_LOAD / pace_of(WORK, TRAFFIC).prompt_seconds
    assert pools(decode=50).most_requests_per_second == pytest.approx(prefill)
    assert pools(prefill=50).most_requests_per_second < 50 * prefill
    assert pools(decode=50).at_rate(1.01 * prefill) is None


@pytest.mark.parametrize("clients", [1, 8, 64, 500])
def test_clients_equal_rate_times_time(clients):
    # Little's law, waits included.
    seen = pools().at(clients)
    assert seen.requests_per_second * (seen.ttft_seconds + 511 * seen.tpot_seconds) == pytest.approx(clients, rel=0.01)


def test_only_decoding_replicas_hold_running_requests():
    assert pools(prefill=3, decode=2).most_running == 2 * 64


def test_the_search_divides_the_gpus_into_pools():
    layout = {"tensor_parallel": 1, "pipeline_parallel": 1}
    answer = plan_serving(question(gpus=4, layout=layout, disaggregated=Disaggregation()))
    assert 1 <= answer.plan.layout.prefill_replicas <= 3
    fixed = plan_serving(question(gpus=4, layout=layout, disaggregated=Disaggregation(prefill_gpus=3, decode_gpus=1)))
    assert fixed.plan.layout.prefill_replicas == 3
    assert any("cache is sent once" in note for note in fixed.assumptions)
    assert "(3 prefill and 1 decode replica of tensor parallel 1" in fixed.summary


def test_a_cache_goes_over_the_network_between_nodes():
    # 4,096 tokens x 128 KiB at 450 and at 50 GB/s.
    layout = {"tensor_parallel": 1, "pipeline_parallel": 1}
    asked = {"layout": layout, "disaggregated": Disaggregation(prefill_gpus=1), "input_tokens": 4096, "concurrency": 1}
    near = plan_serving(question(gpus=2, **asked)).plan.performance
    far = plan_serving(question(hardware=hardware(2, gpus_per_node=1), **asked)).plan.performance
    moved = 4096 * 128 * 1024
    assert far.ttft_seconds - near.ttft_seconds == pytest.approx(moved / 50e9 - moved / 450e9, rel=0.01)


@pytest.mark.parametrize("asked", [Disaggregation(prefill_gpus=2, decode_gpus=1), Disaggregation(prefill_gpus=4)])
def test_pools_that_the_gpus_do_not_make_are_refused(asked):
    with pytest.raises(ImpossibleLayout, match="cannot be divided") as caught:
        plan_serving(question(model(), gpus=4, layout={"tensor_parallel": 1}, disaggregated=asked))
    assert caught.value.pointer == "/serving/disaggregated"


def test_an_engine_whose_speed_is_not_described_has_no_pools():
    with pytest.raises(NotYetAvailable) as caught:
        plan_serving(question(engine="transformers", engine_version=None, disaggregated=Disaggregation()))
    assert caught.value.pointer == "/serving/disaggregated"


def test_waiting_grows_with_the_rate_up_to_the_decoding_places_limit():
    # Eight places decode what many replicas prefill; random requests never find a full pool without a wait.
    served = pools(prefill=20, places=8)
    most = served.most_requests_per_second
    waits = [state.ttft_seconds for part in range(1, 200) if (state := served.at_rate(most * part / 200)) is not None]
    assert len(waits) > 190
    assert waits == sorted(waits)
    assert served.at_rate(0.995 * most) is None
