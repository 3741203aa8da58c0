"""Tests of the serving benchmark: its cases and its fit."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.accuracy.serving.fit import (
    DECODE_PRIOR,
    PREFILL_PRIOR,
    Problem,
    bounded,
    first_token_problem,
    is_kept_back,
    token_problem,
)
from benchmarks.accuracy.serving.latencies import drafting_cases, latency_cases
from benchmarks.accuracy.serving.report import first_token_seconds, token_seconds
from benchmarks.accuracy.serving.startup_logs import log_cases
from plimsoll.planners.serving.times.efficiency import efficiency


@pytest.fixture(scope="module")
def logs():
    return log_cases()


def test_every_printed_cache_lies_within_its_band(logs):
    assert len(logs.cases) == 39
    assert all(case.is_within_band for case in logs.cases)


def test_printed_tokens_are_met_within_one_part_in_forty_and_most_within_a_thousand(logs):
    # Kimi-Dev-72B has 3 GiB of cache, of which 0.07 are 2.4 %.
    errors = sorted(abs(case.errors()["kv_tokens"]) for case in logs.cases if "kv_tokens" in case.errors())
    assert errors[-1] < 0.025
    assert errors[len(errors) // 2] < 0.001


def test_every_row_is_a_case_or_left_out_for_a_reason(logs):
    assert len(logs.cases) + len(logs.left_out) == 66
    cases, left_out = latency_cases()
    assert len(cases) + sum(left_out.values()) == 873


def test_least_squares_hold_parts_at_their_least():
    # x + y = 1 and y = -1: y is held at 0, and x the nearest to 1; held at 2, x stays there.
    matrix, target = np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([1.0, -1.0])
    assert bounded(matrix, target, least=np.zeros(2)) == pytest.approx([1.0, 0.0])
    assert bounded(matrix, target, least=np.array([2.0, 0.0])) == pytest.approx([2.0, 0.0])


def problem() -> Problem:
    """Return rows of two models and two engines that take exactly twice their only term."""
    return Problem(
        names=("term",),
        terms=np.array([[1.0], [2.0], [3.0], [4.0]]),
        measured=np.array([2.0, 4.0, 6.0, 8.0]),
        engines=np.array(["a", "a", "b", "b"]),
        families=np.array(["x", "y", "x", "y"]),
        groups=np.array(["x", "y", "x", "y"]),
        least=np.array([0.0]),
        prior=np.array([1.0]),
        together=np.array([1e-9]),
        each=np.array([1e-9]),
        outlier=0.2,
    )


def test_a_fit_finds_what_the_rows_were_made_with():
    weights = problem().fit(np.ones(4, dtype=bool))
    assert {engine: values[0] for engine, values in weights.items()} == pytest.approx({"a": 2.0, "b": 2.0})


def test_rows_of_a_model_left_out_are_estimated_from_the_others():
    assert problem().held_out() == pytest.approx(problem().measured)


def test_the_planner_weighs_the_terms_that_were_fitted():
    # On NVLink the planner's first token is the weighed sum of the fit's own terms.
    cases = latency_cases()[0][::40]
    for problem_of, planned in ((token_problem, token_seconds), (first_token_problem, first_token_seconds)):
        fitted = problem_of(cases)
        part = "decode" if problem_of is token_problem else "prefill"
        weights = {
            engine: np.array([getattr(efficiency(engine), part)[name] for name in fitted.names])
            for engine in ("vllm", "sglang", "trtllm")
        }
        assert fitted.estimates(weights) == pytest.approx([planned(case) for case in cases], rel=1e-6)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_the_data_file_weighs_every_term_that_is_fitted(engine):
    assert set(efficiency(engine).decode) == set(DECODE_PRIOR)
    assert set(efficiency(engine).prefill) == set(PREFILL_PRIOR)


def test_whole_deployments_are_kept_back():
    cases = latency_cases()[0]
    names = [{case.deployment for case in cases if is_kept_back(case) == kept} for kept in (True, False)]
    assert not names[0] & names[1]
    assert all(names)


def test_no_case_is_faster_than_the_cards_own_rates():
    # Seconds at the card's rates are weighed by one at least.
    at_peak = ("dense_weights", "expert_weights", "expert_tiles", "cache", "all_reduce", "compute_beyond_reading")
    for engine in ("vllm", "sglang", "trtllm"):
        assert all(efficiency(engine).decode[name] >= 1 for name in at_peak)


def test_degrees_that_a_row_prints_multiplied_are_taken_from_its_id():
    # ..._tp8_ep8 stands beside a degree of 64 on 64 GPUs.
    cases = [case for case in latency_cases()[0] if "deepseek-ai/DeepSeek-R1|b200_sxm|fp8|8|1|1|8" in case.deployment]
    assert cases
    assert all(case.work.ranks_per_stage == 8 for case in cases)


def test_rows_that_draft_are_told_from_those_that_do_not():
    # One token where ranks divide the attention by requests, else three.
    cases = drafting_cases()
    assert {(case.work.attention_data_parallel > 1, case.traffic.draft_tokens) for case in cases} == {
        (True, 1),
        (False, 3),
    }
    assert all(case.traffic.draft_tokens == 0 for case in latency_cases()[0])
