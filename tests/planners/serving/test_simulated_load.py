"""Tests of a deployment's simulated loads, beside the closed forms where nothing queues."""

from __future__ import annotations

import pytest

from plimsoll.planners.ground.errors import InvalidQuestion, NotYetAvailable
from plimsoll.planners.questions import Disaggregation, LengthDistribution, ServiceLevel
from plimsoll.planners.serving import simulated_load
from plimsoll.planners.serving.planning import plan_serving
from plimsoll.planners.serving.search.search import search_fleet
from plimsoll.planners.serving.simulated_load import SimulatedReplica
from tests.planners.serving.factories import question

ENGINES = ("vllm", "sglang", "tensorrt-llm")


def simulated(**asked):
    usual = {"engine_version": None, "input_tokens": 1024, "output_tokens": 512}
    best = search_fleet([question(**usual | asked)]).candidates[0]
    replica = SimulatedReplica(
        question=best.question, settings=best.settings, replica=best.replica, deployment=best.deployment
    )
    return replica, best


@pytest.mark.parametrize("engine", ENGINES)
def test_a_single_client_sees_what_the_closed_form_says(engine):
    replica, best = simulated(engine=engine, concurrency=1)
    load = replica.closed_loop(1)
    assert load.ttft.mean_seconds == pytest.approx(best.state.ttft_seconds, rel=0.02)
    assert load.tpot.mean_seconds == pytest.approx(best.state.tpot_seconds, rel=0.02)
    assert load.requests_per_second == pytest.approx(best.state.requests_per_second, rel=0.02)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("clients", [4, 32, 128])
def test_clients_that_all_have_a_place_agree_with_the_closed_form(engine, clients):
    # Of a closed loop begun at once prompts come together: fewer fall between two tokens than at random.
    replica, best = simulated(engine=engine, concurrency=clients)
    load = replica.closed_loop(clients)
    assert load.tpot.mean_seconds == pytest.approx(best.state.tpot_seconds, rel=0.12)
    assert load.requests_per_second == pytest.approx(best.state.requests_per_second, rel=0.05)


@pytest.mark.parametrize("engine", ENGINES)
def test_few_requests_at_random_agree_with_the_closed_form(engine):
    replica, best = simulated(engine=engine, requests_per_second=1.0)
    load = replica.at_rate(1.0, best.state.running)
    # A step that is under way as a request comes is waited for: up to 6.5 ms of 65.
    assert load.ttft.mean_seconds == pytest.approx(best.state.ttft_seconds, rel=0.1)
    assert load.tpot.mean_seconds == pytest.approx(best.state.tpot_seconds, rel=0.03)
    assert load.requests_per_second == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("clients", [8, 32, 256])
@pytest.mark.parametrize("tokens", [1, 4])
def test_short_answers_come_no_faster_than_prompts_are_computed(clients, tokens):
    replica, best = simulated(concurrency=clients, output_tokens=tokens)
    load = replica.closed_loop(clients)
    # A prompt takes a share of full batches; steps are looked up, which rounds them by a few hundredths.
    assert load.requests_per_second * best.deployment.pace.prompt_seconds <= 1.03
    assert load.requests_per_second == pytest.approx(best.state.requests_per_second, rel=0.25)


def test_clients_keep_their_number():
    # Little's law: rate times the time of an answer is the clients.
    load = simulated(concurrency=64)[0].closed_loop(64)
    assert load.requests_per_second * load.request.mean_seconds == pytest.approx(64, rel=0.05)


def test_quantiles_rise():
    load = simulated(concurrency=64)[0].closed_loop(64)
    for seconds in (load.ttft, load.tpot, load.request):
        assert seconds.p50_seconds <= seconds.p90_seconds <= seconds.p95_seconds <= seconds.p99_seconds


def test_a_queue_of_requests_at_once_waits_longer_than_their_half():
    replica, _ = simulated(concurrency=1)
    half, whole = replica.at_once(400), replica.at_once(800)
    assert whole.ttft.p99_seconds > half.ttft.p99_seconds
    assert whole.output_tokens_per_second >= 0.9 * half.output_tokens_per_second


def test_bursts_far_apart_are_each_as_one_alone():
    replica, _ = simulated(concurrency=1)
    one, three = replica.at_once(16), replica.bursts(16, seconds=1000.0)
    assert three.ttft.p99_seconds == pytest.approx(one.ttft.p99_seconds)
    assert three.counted_requests == 16


@pytest.mark.parametrize("engine", ENGINES)
def test_a_long_queue_is_told_by_its_beginning(engine, monkeypatch):
    replica, _ = simulated(engine=engine)
    told = replica.at_once(4000)
    monkeypatch.setattr(simulated_load, "LONG_QUEUES", 10**6)
    whole = replica.at_once(4000)
    for seconds, of_all in ((told.ttft, whole.ttft), (told.request, whole.request)):
        assert seconds.mean_seconds == pytest.approx(of_all.mean_seconds, rel=0.1)
        assert seconds.p95_seconds == pytest.approx(of_all.p95_seconds, rel=0.1)
    assert told.burst_clears_seconds == pytest.approx(whole.burst_clears_seconds, rel=0.1)


def test_clients_of_a_long_queue_are_told_by_its_beginning(monkeypatch):
    replica, _ = simulated()
    told = replica.closed_loop(6000)
    monkeypatch.setattr(simulated_load, "LONG_QUEUES", 10**6)
    assert told.ttft.mean_seconds == pytest.approx(replica.closed_loop(6000).ttft.mean_seconds, rel=0.05)
    assert told.requests_per_second * told.request.mean_seconds == pytest.approx(6000)


def test_bursts_that_keep_up_have_the_throughput_of_what_comes():
    asked = plan_serving(question(input_tokens=1024, output_tokens=128, concurrency=30, burst_seconds=20.0))
    performance = asked.plan.performance
    assert asked.meets
    assert performance.requests_per_second == pytest.approx(1.5)
    assert performance.ttft_seconds == performance.simulated.ttft.mean_seconds
    assert performance.simulated.burst_clears_seconds < 20
    assert "bursts of 30 requests, one every 20 s" in asked.summary


def test_bursts_over_one_another_are_kept_up_with_below_the_rate_of_full_replicas():
    # An answer takes several seconds; bursts of 4 come each second.
    asked = plan_serving(question(input_tokens=1024, output_tokens=512, concurrency=4, burst_seconds=1.0))
    assert asked.plan.performance.simulated.burst_clears_seconds > 1
    assert asked.meets


def test_bursts_that_outrun_the_replicas_are_not_met_and_what_helps_is_offered():
    asked = plan_serving(question(input_tokens=1024, output_tokens=512, concurrency=400, burst_seconds=5.0))
    assert not asked.meets
    assert asked.meets_concurrency is False
    assert "a burst is answered after" in asked.summary
    assert asked.plan.performance.requests_per_second < 80
    rarer = next(each for each in asked.advice if "serving.burst_seconds" in each.change)
    assert rarer.meets
    assert rarer.change["serving.burst_seconds"] > 5


def test_bursts_are_held_to_the_service_level():
    level = ServiceLevel(ttft_seconds=1.0)
    asked = question(input_tokens=1024, output_tokens=128, concurrency=200, burst_seconds=60.0, slo=level)
    answer = plan_serving(asked)
    assert answer.meets_concurrency
    assert answer.meets_slo is (answer.plan.performance.ttft_seconds <= 1.0) is False


def test_bursts_have_no_replicas_that_prefill_alone_yet():
    pools = Disaggregation()
    with pytest.raises(NotYetAvailable) as caught:
        plan_serving(question(gpus=2, concurrency=8, burst_seconds=9.0, disaggregated=pools))
    assert caught.value.pointer == "/serving/burst_seconds"


def test_requests_that_outrun_the_replicas_are_not_simulated():
    asked = plan_serving(question(input_tokens=1024, output_tokens=512, requests_per_second=500.0))
    assert asked.plan.performance.simulated is None
    assert any("single requests are not simulated" in note for note in asked.assumptions)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("part", [0.2, 0.5, 0.8])
def test_requests_at_random_run_as_many_as_rate_times_time(engine, part):
    full = simulated(engine=engine)[1]
    rate = part * full.deployment.at(full.deployment.most_running).requests_per_second
    replica, best = simulated(engine=engine, requests_per_second=rate)
    load = replica.at_rate(rate, best.state.running)
    assert load.tpot.mean_seconds == pytest.approx(best.state.tpot_seconds, rel=0.15)
    assert load.request.mean_seconds * rate == pytest.approx(best.state.running, rel=0.15)


def test_clients_without_a_place_wait_for_one():
    # Twice as many clients as places, of an engine that keeps a place for each request's whole length: each waits about
    # as long as another's answer takes.
    replica, best = simulated(engine="tensorrt-llm")
    places = best.replica.places
    load = replica.closed_loop(2 * places)
    assert load.ttft.mean_seconds == pytest.approx(load.request.mean_seconds / 2, rel=0.1)
    assert load.requests_per_second * load.request.mean_seconds == pytest.approx(2 * places, rel=0.1)


def test_the_mean_of_lengths_is_kept_beside_their_percentiles():
    lengths = LengthDistribution(mean=400.0, p90=1200.0)
    answer = plan_serving(question(input_length=lengths, output_tokens=64, concurrency=4))
    assert answer.plan.settings.input_tokens == 400
    load = answer.plan.performance.simulated
    assert load.ttft.p95_seconds > 1.2 * load.ttft.p50_seconds


def test_the_answer_follows_requests_where_a_load_was_asked():
    asked = plan_serving(question(input_tokens=1024, output_tokens=128, concurrency=8))
    assert asked.plan.performance.simulated.arrivals == "closed_loop"
    assert any("scheduler at the asked load" in note for note in asked.assumptions)
    free = plan_serving(question(input_tokens=1024, output_tokens=128))
    assert free.plan.performance.simulated is None


def test_single_requests_are_not_followed_where_nobody_wants_it():
    asked = plan_serving(question(input_tokens=1024, output_tokens=128, concurrency=8, simulate=False))
    assert asked.plan.performance.simulated is None
    assert not any("performance.simulated" in note for note in asked.assumptions)
    bursts = question(input_tokens=1024, output_tokens=128, concurrency=8, burst_seconds=60.0, simulate=False)
    assert plan_serving(bursts).plan.performance.simulated.arrivals == "bursts"


def test_bursts_are_simulated_where_they_were_asked():
    # Bursts of 8, far apart: each as one alone.
    asked = plan_serving(question(input_tokens=1024, output_tokens=128, concurrency=8, burst_seconds=60.0))
    load = asked.plan.performance.simulated
    assert (load.arrivals, load.counted_requests) == ("bursts", 8)
    assert any(note.startswith("Bursts:") for note in asked.assumptions)


def test_bursts_need_their_size():
    with pytest.raises(InvalidQuestion, match="burst_seconds needs concurrency"):
        plan_serving(question(burst_seconds=60.0))
