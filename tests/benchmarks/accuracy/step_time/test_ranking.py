"""Measured layouts of one job, ranked by what was answered of them."""

import numpy as np
import pytest

from benchmarks.accuracy.step_time.ranking import RankedJob, is_stalled, moving_parts, order_cells, ranked_jobs, tie_of
from benchmarks.accuracy.step_time.timed_runs import DENSE, SWEEP, TimedAnswer, TimedRun

PLAIN = {
    **dict.fromkeys(
        ("data_parallel", "tensor_parallel", "pipeline_parallel", "virtual_pipeline", "context_parallel"), 1
    ),
    "expert_parallel": 1,
    "sequence_parallel": False,
    "zero_stage": 0,
    "shard_group": 1,
    "micro_batch_size": 1,
    "recompute": "none",
    "fused_cross_entropy": False,
    "offload": "none",
    "activation_offload": False,
}


def timed(measured, estimated, *, batch=8, group="", kind=DENSE, tensor=1, high=2.0, **training):
    request = {
        "model": "a model",
        "hardware": {"gpus": 8},
        "training": {"global_batch_size": batch, **training},
        "layout": {"tensor_parallel": tensor},
    }
    run = TimedRun(
        name="a run", source="a page", stack="megatron", gpu="a card", kind=kind, is_seen=False, request=request,
        seconds=measured, group=group,
    )  # fmt: skip
    return TimedAnswer(run=run, answer={"plan": {"step": {"seconds": estimated, "high_seconds": high}}})


def job(estimated, measured):
    return RankedJob(
        source="a page",
        stack="megatron",
        kind=DENSE,
        answers=(),
        estimated=np.array(estimated),
        measured=np.array(measured),
    )


def test_runs_that_differ_in_their_layout_are_one_job():
    told = [timed(2.0, 1.0), timed(3.0, 4.0, tensor=2), timed(5.0, 4.0, micro_batch_size=2), timed(7.0, 6.0, batch=16)]
    (found,) = ranked_jobs(told)
    # Eight sequences a step.
    np.testing.assert_allclose(found.measured, np.array([2.0, 3.0, 5.0]) / 8)
    np.testing.assert_allclose(found.estimated, np.array([1.0, 4.0, 4.0]) / 8)


def test_a_layout_that_was_measured_twice_counts_once():
    # √(2 x 8) = 4.
    (found,) = ranked_jobs([timed(2.0, 1.0), timed(8.0, 1.0), timed(3.0, 4.0, tensor=2)])
    np.testing.assert_allclose(found.measured, np.array([4.0, 3.0]) / 8)


def test_jobs_that_their_file_groups_are_ranked_by_a_sequence():
    told = [timed(2.0, 1.0, batch=2, group="a page's"), timed(3.0, 1.0, batch=6, group="a page's"), timed(1.0, 1.0)]
    (found,) = ranked_jobs(told)
    np.testing.assert_allclose(found.measured, [1.0, 0.5])


def test_what_a_fit_without_the_source_makes_of_an_estimate_is_ranked():
    (found,) = ranked_jobs([timed(2.0, 1.0), timed(3.0, 4.0, tensor=2)], {1: 0.5})
    np.testing.assert_allclose(found.estimated, np.array([1.0, 2.0]) / 8)


def test_a_tie_leaves_one_pair_in_ten_on_the_wrong_side():
    # Ten pairs are off by 1.1, 1.2, ... 2.0. Eight of them are within 1.8, and of the others half err each way.
    jobs = [job([1.0, 1.0], [1.0, 1.0 + tenths / 10]) for tenths in range(1, 11)]
    assert tie_of(jobs) == pytest.approx(0.8)


def test_pairs_are_counted_within_the_tie_and_beyond():
    # Estimates 10 % and twice apart, the first measured the other way round; Megatron's tie is between the two.
    jobs = [job([1.0, 1.1], [1.1, 1.0]), job([1.0, 2.0], [1.0, 3.0])]
    assert order_cells(jobs, is_tied=True).split() == ["1", "0%"]
    assert order_cells(jobs, is_tied=False).split() == ["1", "100%"]


def test_a_run_in_the_slow_mode_is_not_told_apart_by_its_layout():
    # The upper bound is far beyond the band's: the difference is the stall, of which the run took more than half.
    assert is_stalled(timed(60.0, 1.0, kind=SWEEP, high=100.0))
    assert not is_stalled(timed(2.0, 1.0, kind=SWEEP, high=100.0))
    assert not is_stalled(timed(60.0, 1.0, high=100.0))


def test_moving_parts_are_those_of_the_search():
    assert moving_parts(PLAIN) == 0
    # Tensor parallelism, sequence parallelism and recomputation.
    assert moving_parts({**PLAIN, "tensor_parallel": 2, "sequence_parallel": True, "recompute": "full"}) == 3
