"""Tests of latencies: a step's operators, gaps and host, other requests' prompts, first tokens."""

from __future__ import annotations

import dataclasses

import pytest

from plimsoll.planners.serving.times.batching import Deployment
from plimsoll.planners.serving.times.pace import pace_of, pipe_part
from plimsoll.planners.serving.traffic import Traffic
from tests.planners.serving.factories import MIXTRAL, model
from tests.planners.serving.times.test_replica_work import work_at

LONG = Traffic(input_tokens=1, output_tokens=2000)
MIXED = Traffic(input_tokens=1024, output_tokens=128)


def with_step(work, **terms):
    """Return the same work with other terms of a step."""
    step = dataclasses.replace(work.efficiency.step, **terms)
    return dataclasses.replace(work, efficiency=dataclasses.replace(work.efficiency, step=step))


def test_a_step_is_its_operators_and_the_gaps_between_them():
    work = with_step(work_at(), kernel_seconds=1e-6, host_seconds=0.0, request_seconds=0.0)
    pace = pace_of(work, LONG)
    # 32 layers of 4 products, 2 norms, a rotation and an activation; the context is 1 + 2,000 / 2.
    operators = work.dense.at(8) + work.token_attention(1001).at(8) + work.head.at(8)
    assert pace.step_seconds(8) == pytest.approx(operators + 32 * 8 * 1e-6)


def test_a_host_that_works_ahead_is_felt_only_where_it_takes_longer_than_the_card():
    ahead = with_step(work_at(), host_seconds=0.1, request_seconds=0.01)
    behind = dataclasses.replace(ahead, overlaps_host=False)
    card = pace_of(with_step(ahead, host_seconds=0.0, request_seconds=0.0), LONG).step_seconds(4)
    assert pace_of(ahead, LONG).step_seconds(4) == pytest.approx(0.14)
    assert pace_of(behind, LONG).step_seconds(4) == pytest.approx(card + 0.14)


def test_ranks_wait_for_one_another_at_every_exchange():
    slow, quick = (pace_of(with_step(work_at(tensor_parallel=8), exchange_seconds=each), LONG) for each in (1e-4, 0.0))
    assert slow.step_seconds(1) - quick.step_seconds(1) == pytest.approx(64 * 3 * 1e-4)


def test_each_other_request_sends_a_prompt_in_a_requests_answer():
    work = work_at()
    share = work.efficiency.step.others_prompts
    others = pace_of(work, MIXED).others_seconds(5)
    assert others == pytest.approx(share * 4 / 128 * work.prompt_pass_seconds(1024))


@pytest.mark.parametrize(("output_tokens", "part"), [(512, 1.0), (8, 1 / 2), (1, 1 / 4)])
def test_prompts_hold_up_a_pipeline_but_where_several_of_its_batches_carry_them(output_tokens, part):
    # 128 requests of 1,024 tokens a step of all four stages: 16 batches of 8,192 with answers of one token, more than
    # the stages; 2 with answers of 8; a fraction of one with 512.
    work = work_at(pipeline_parallel=4)
    assert work.batch_tokens == 8192
    pace = pace_of(work, Traffic(input_tokens=1024, output_tokens=output_tokens))
    prompts = pace.engine_seconds(128, output_tokens) - (output_tokens - 1) * pace.step_seconds(128)
    assert prompts == pytest.approx(128 * part * pace.prompt_pass_seconds)


def test_a_request_alone_is_held_up_by_nobody():
    pace = pace_of(work_at(), MIXED)
    assert pace.others_seconds(1) == 0
    assert pace.token_seconds(1) == pace.step_seconds(1)


def test_a_step_is_longer_with_more_requests_and_with_longer_ones():
    pace, longer = pace_of(work_at(), MIXED), pace_of(work_at(), dataclasses.replace(MIXED, input_tokens=16384))
    assert pace.step_seconds(1) < pace.step_seconds(64) < pace.step_seconds(512)
    assert longer.step_seconds(64) > pace.step_seconds(64)


def test_first_tokens_wait_for_steps_under_way_and_for_some_of_the_other_prompts():
    work = work_at()
    pace, first = pace_of(work, MIXED), work.efficiency.first_token
    alone = first.host_seconds + first.prompt * work.prompt_alone_seconds(1024)
    waited = first.queued_prompts * 63 * work.prompt_pass_seconds(1024) + first.awaited_steps * pace.step_seconds(64)
    assert pace.first_token_seconds(64) == pytest.approx(alone + waited)


def test_drafted_tokens_are_rows_of_products_and_share_a_reading_of_the_cache():
    work = with_step(work_at(), kernel_seconds=0.0, host_seconds=0.0, request_seconds=0.0)
    pace = pace_of(work, dataclasses.replace(LONG, draft_tokens=3, acceptance_fraction=0.5))
    attended = work.token_attention(1001).at(8)
    assert pace.step_seconds(8) == pytest.approx(work.linear_seconds(32) + work.head.at(32) + attended)
    # 1 + 1/2 + 1/4 + 1/8 tokens a step, whose drafts are made by one layer of 32.
    assert pace.token_seconds(8) > pace.step_seconds(8) * (1 + 3 / 32) / 1.875


def test_the_engine_takes_no_less_than_its_prompts_and_its_steps():
    work = work_at()
    pace = pace_of(work, MIXED)
    expected = 16 * work.prompt_pass_seconds(1024) + 127 * pace.step_seconds(16)
    assert pace.engine_seconds(16, 128) == pytest.approx(expected)


@pytest.mark.parametrize("clients", [1, 7, 64, 500])
@pytest.mark.parametrize("traffic", [MIXED, Traffic(input_tokens=8000, output_tokens=10), LONG])
def test_no_closed_loop_delivers_more_than_the_engine_can(traffic, clients):
    work = work_at()
    pace = pace_of(work, traffic)
    state = Deployment(work=work, places=64, replicas=1, traffic=traffic).at(clients)
    running = min(clients, 64)
    assert state.requests_per_second <= running / pace.engine_seconds(running, traffic.output_tokens) * (1 + 1e-9)


def test_attention_ranks_have_a_part_of_the_requests_each():
    work = work_at(spec=model(MIXTRAL), attention=4, experts=4, weights="fp8")
    pace = pace_of(work, MIXED)
    assert pace.rank_requests(64) == 16
    assert pace.others_seconds(64) == pytest.approx(
        work.efficiency.step.others_prompts * 15 / 128 * work.prompt_pass_seconds(1024)
    )


def test_a_pipeline_passes_its_hidden_states_on():
    one, two = pace_of(work_at(), LONG), pace_of(work_at(pipeline_parallel=2), LONG)
    assert two.token_seconds(1) > one.token_seconds(1)


@pytest.mark.parametrize(
    ("stages", "following", "part"),
    # Each of 5 batches through 4 stages takes 8 stage times / 5; a stage time is a quarter of the whole passing.
    [(4, 0.2, 1.0), (4, 1, 1.0), (4, 5, 8 / 5 / 4), (1, 0.2, 1.0), (1, 9, 1.0)],
)
def test_a_batch_alone_in_the_pipe_holds_it_up_by_its_whole_passing(stages, following, part):
    assert pipe_part(stages, following) == pytest.approx(part)


def test_every_stage_has_a_steps_start_and_its_hosts_work():
    work = with_step(work_at(pipeline_parallel=4), host_seconds=1.0, request_seconds=0.1)
    # 16 requests in each of 4 stages, all busy, which wait for the one with the most to read.
    stretched = 4 * work.slowest_stage_part
    assert pace_of(work, LONG).step_seconds(64) == pytest.approx(4 * (1.0 + 16 * 0.1) * stretched)


def test_busy_stages_wait_for_the_one_that_reads_the_most():
    # The stages have 10 or 11 of 32 layers, and the last the head as well.
    work = work_at(pipeline_parallel=3)
    level = dataclasses.replace(work, slowest_stage_part=1 / 3)
    assert work.slowest_stage_part > 1 / 3
    assert pace_of(work, LONG).step_seconds(1) == pace_of(level, LONG).step_seconds(1)
    stretched = pace_of(work, LONG).step_seconds(12) / pace_of(level, LONG).step_seconds(12)
    assert stretched == pytest.approx(3 * work.slowest_stage_part)


@pytest.mark.parametrize("clients", [8, 64, 512])
def test_replicas_outrun_the_stages_of_a_pipeline_on_as_many_gpus(clients):
    traffic = Traffic(input_tokens=1024, output_tokens=1024)
    replicas = Deployment(work=work_at(), places=512, replicas=8, traffic=traffic)
    stages = Deployment(work=work_at(pipeline_parallel=8), places=512, replicas=1, traffic=traffic)
    assert replicas.at(clients).requests_per_second > stages.at(clients).requests_per_second


def test_fp8_weights_read_faster_and_multiply_faster():
    half, whole = (pace_of(work_at(weights=weights), MIXED) for weights in ("fp8", "bf16"))
    assert half.step_seconds(1) < whole.step_seconds(1)
    assert half.prompt_seconds < whole.prompt_seconds
