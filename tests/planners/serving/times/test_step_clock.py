"""Tests of what single steps take, beside the pace that they are read from."""

from __future__ import annotations

import pytest

from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.replica import plan_replica, work_of
from plimsoll.planners.serving.settings.settings import resolve_settings
from plimsoll.planners.serving.times.pace import pace_of
from plimsoll.planners.serving.times.step_clock import StepClock
from plimsoll.planners.serving.traffic import Traffic
from tests.planners.serving.factories import question

ASKED = question()
SETTINGS = resolve_settings(ASKED)
TRAFFIC = Traffic(input_tokens=1024, output_tokens=512)
WORK = work_of(ASKED, SETTINGS, plan_replica(ASKED, SETTINGS, Degrees()))
PACE = pace_of(WORK, TRAFFIC)


def clock() -> StepClock:
    return StepClock(pace=PACE, traffic=TRAFFIC)


@pytest.mark.parametrize("requests", [1, 2, 7, 16, 50, 128])
def test_a_step_at_the_mean_context_takes_what_the_pace_says(requests):
    # Attention between its two ends lies within a hundredth of the straight line.
    seconds = clock().step_seconds(requests, TRAFFIC.context_tokens, 0)
    assert seconds == pytest.approx(PACE.step_seconds(requests), rel=0.01)


def test_longer_contexts_take_longer():
    assert clock().step_seconds(64, 1500.0, 0) > clock().step_seconds(64, 1100.0, 0)


def test_a_full_batch_of_prompt_tokens_adds_what_a_prompt_passes_in():
    # 8 prompts of 1,024 tokens fill a step of 8,192.
    assert WORK.batch_tokens == 8 * 1024
    added = clock().step_seconds(1, TRAFFIC.context_tokens, 8192) - clock().step_seconds(1, TRAFFIC.context_tokens, 0)
    assert added == pytest.approx(8 * PACE.prompt_pass_seconds, rel=0.02)


@pytest.mark.parametrize("requests", [9, 17, 33, 100])
def test_steps_grow_with_their_requests(requests):
    one = clock()
    assert one.step_seconds(requests, 1200.0, 0) <= one.step_seconds(requests + 8, 1200.0, 0)


def test_prompts_that_follow_others_find_a_pipeline_full_of_them():
    # Two stages, two batches of prompts: they pass in 3 stage times of which the last falls together with the first of
    # the next two, so that each takes a half of its passing through both where the pipe never runs empty.
    work = work_of(ASKED, SETTINGS, plan_replica(ASKED, SETTINGS, Degrees(pipeline_parallel=2)))
    one = StepClock(pace=pace_of(work, TRAFFIC), traffic=TRAFFIC)
    plain = one.step_seconds(2, TRAFFIC.context_tokens, 0)
    alone, after = (one.step_seconds(2, TRAFFIC.context_tokens, 16384, follows=each) - plain for each in (False, True))
    assert after == pytest.approx(alone * (1 / 2) / (3 / 4))
