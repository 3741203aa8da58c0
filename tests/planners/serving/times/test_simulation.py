"""Tests of one simulated replica; every time is worked out step by step at one second a step."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from plimsoll.planners.serving.releases.profile import engine_profile
from plimsoll.planners.serving.releases.rules import Admission, Scheduling
from plimsoll.planners.serving.times.arrivals import burst_load, closed_loop_load
from plimsoll.planners.serving.times.batch import Engine
from plimsoll.planners.serving.times.simulation import Simulation

MIXED = Scheduling(admission=Admission.CHUNK, mixes_prompts=True, chunks_prompts=True)
APART = Scheduling(
    admission=Admission.ESTIMATE,
    mixes_prompts=False,
    chunks_prompts=True,
    resumes_first=False,
    expected_output=0.5,
    least_expected_output=0.5,
    most_expected_tokens=4096,
)
WHOLE = Scheduling(admission=Admission.WHOLE, mixes_prompts=True, chunks_prompts=False)


@dataclass(frozen=True)
class SecondSteps:
    """Steps of one second, and what each prompt token, request and token of context adds."""

    prompt_token: float = 0.0
    request: float = 0.0
    context: float = 0.0

    def step_seconds(self, requests, context_tokens, prompt_tokens, *, follows=False):
        return 1 + self.prompt_token * prompt_tokens + self.request * requests + self.context * context_tokens


def served(lengths, *, scheduling=MIXED, clients=None, clock=None, load=None, **engine):
    limits = {"batch_tokens": 100, "max_requests": 100, "cache_units": 10**6, **engine}
    run = Simulation(
        engine=Engine(scheduling=scheduling, **limits),
        clock=clock or SecondSteps(),
        load=load or closed_loop_load(lengths, clients=clients or len(lengths)),
    )
    return run.run()


def test_one_request_takes_a_step_for_its_prompt_and_one_for_each_further_token():
    (request,) = served([(10, 4)])
    assert (request.first_at, request.done_at, request.tpot_seconds) == (1.0, 4.0, 1.0)


def test_a_prompt_longer_than_a_step_is_cut():
    # 250 tokens in steps of 100: 100, 100, 50; the third puts out the first token.
    (request,) = served([(250, 2)])
    assert (request.first_at, request.done_at) == (3.0, 4.0)


def test_a_mixed_step_decodes_first_and_computes_prompts_with_what_is_left():
    # Step 1: 60 of the first, 40 of the second. Step 2: one token of the first, the 20 left of the second.
    # Steps 3, 4: both decode; the first has 4 tokens after step 4, the second 3.
    first, second = served([(60, 4), (60, 3)])
    assert (first.first_at, first.done_at) == (1.0, 4.0)
    assert (second.first_at, second.done_at) == (2.0, 4.0)


def test_running_requests_take_their_tokens_of_a_step():
    # Ten prompts of one token leave 90 of a step of 100 to a prompt of 181, as their answers do: 90 + 90 + 1.
    requests = served([(1, 50)] * 11, load=burst_load([(1, 50)] * 10 + [(181, 2)], requests=11, seconds=9.0))
    assert requests[10].first_at == 3.0


def test_the_time_of_alike_steps_follows_the_mean_context():
    # Three steps at contexts 11, 12, 13 at 0.1 s each token besides 1 s: 3 + 3.6.
    (request,) = served([(10, 4)], clock=SecondSteps(context=0.1))
    assert request.done_at - request.first_at == pytest.approx(6.6)


def test_prompts_apart_keep_decoding_requests_waiting():
    # Step 1: the first prompt whole and 40 of the second. Step 2: its last 20, nobody decodes. Then both decode.
    first, second = served([(60, 4), (60, 3)], scheduling=APART)
    assert (first.first_at, first.done_at) == (1.0, 5.0)
    assert (second.first_at, second.done_at) == (2.0, 4.0)


def test_a_prompt_that_is_never_cut_waits_for_a_step_with_room():
    # 60 and then 60: the second has no room beside the first, and waits for step 2.
    first, second = served([(60, 4), (60, 3)], scheduling=WHOLE)
    assert (first.first_at, first.done_at) == (1.0, 4.0)
    assert (second.first_at, second.done_at) == (2.0, 4.0)


def test_room_for_the_whole_length_lets_nobody_give_way():
    # 14 units each of 20: the second begins once the first has ended, after 4 steps.
    first, second = served([(10, 4), (10, 4)], scheduling=WHOLE, cache_units=20)
    assert (first.done_at, second.first_at, second.gave_way) == (4.0, 5.0, 0)


def test_the_last_request_gives_way_and_is_computed_again():
    # 10 + 10 tokens of 24. Step 1 computes both. Steps 2 and 3 cache a token of each: 24 of 24. Before step 4 the
    # second gives way with 3 tokens out; the first ends after step 4 of its 4. Then 13 tokens are computed anew in
    # step 5, which puts out the fourth.
    first, second = served([(10, 4), (10, 4)], cache_units=24)
    assert (first.done_at, first.gave_way) == (4.0, 0)
    assert (second.gave_way, second.recomputed_tokens, second.first_at, second.done_at) == (1, 13, 1.0, 5.0)


def test_a_cache_that_nobody_took_is_not_computed_again():
    # As above; the first takes 1 unit of the 13 in step 4, and 12 are found again.
    keeping = Scheduling(admission=Admission.CHUNK, mixes_prompts=True, chunks_prompts=True, keeps_given_way=True)
    _, second = served([(10, 4), (10, 4)], scheduling=keeping, cache_units=24)
    assert second.recomputed_tokens == 1


def test_a_whole_prompt_must_have_room_where_the_engine_asks_for_it():
    # 100 tokens of 150 are taken; of the second prompt of 100 only a half has room.
    prompt = Scheduling(admission=Admission.PROMPT, mixes_prompts=True, chunks_prompts=True)
    _, second = served([(100, 3), (100, 3)], scheduling=prompt, cache_units=150)
    assert second.first_at == 4.0


def test_expected_output_keeps_a_request_out():
    # The first runs with 9 of 10 tokens to come, of which a half is expected: 11 + 4.5; the second needs 10 + 10.
    lengths = [(10, 10), (10, 10)]
    load = burst_load(lengths, requests=1, seconds=1.5)
    _, enough = served(lengths, scheduling=APART, load=load, cache_units=40)
    _, short = served(lengths, scheduling=APART, load=load, cache_units=34)
    assert enough.first_at == 3.0
    assert short.first_at > 3.0


def test_no_more_run_than_the_engine_lets():
    requests = served([(10, 4)] * 3, max_requests=2)
    assert [request.first_at for request in requests] == [1.0, 1.0, 5.0]


def test_a_client_sends_its_next_request_as_the_last_is_answered():
    requests = served([(10, 4)] * 3, clients=1)
    assert [request.sent_at for request in requests] == [0.0, 4.0, 8.0]


def test_a_delay_lies_between_a_request_and_the_scheduler():
    (request,) = served([(10, 4)], delay_seconds=0.25)
    assert (request.sent_at, request.first_at) == (0.0, 1.25)


def test_one_simulated_request_stands_for_several():
    # Two requests of 60 tokens are 120 in steps of 100: 50 each in the first step, 10 in the second.
    (pair,) = served([(60, 3)], weight=2)
    assert (pair.first_at, pair.done_at) == (2.0, 4.0)


def test_drafted_tokens_shorten_an_answer():
    # Eight tokens after the first at two a step.
    (request,) = served([(10, 9)], tokens_per_step=2.0)
    assert request.done_at == 5.0


@pytest.mark.parametrize(
    ("engine", "version", "admission"),
    [
        ("vllm", "0.11", Admission.CHUNK),
        ("vllm", "0.19", Admission.PROMPT),
        ("sglang", "0.5.4", Admission.ESTIMATE),
        ("tensorrt-llm", "1.2", Admission.WHOLE),
    ],
)
def test_engines_admit_as_their_schedulers_do(engine, version, admission):
    assert engine_profile(engine, version).scheduling.admission is admission


@pytest.mark.parametrize("scheduling", [MIXED, APART, WHOLE])
def test_all_are_answered_where_the_cache_is_scarce(scheduling):
    requests = served([(37, 50)] * 60, scheduling=scheduling, cache_units=500)
    assert all(request.done_at > request.first_at > 0 for request in requests)
