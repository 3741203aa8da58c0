"""Tests of the comparison of simulated closed loops with measured ones."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.accuracy.serving.closed_loops import closed_loop_lines, closed_loops
from benchmarks.accuracy.serving.latencies import latency_cases


def test_each_case_is_simulated_beside_the_closed_form():
    cases = [case for case in latency_cases()[0] if case.engine == "trtllm" and case.batch <= 16]
    rows = list(itertools.islice(closed_loops(cases), 12))
    assert len(rows) == 12
    for row in rows:
        # Nothing waits for a place: the two differ by how prompts meet alone.
        assert row.simulated[1] == pytest.approx(row.closed_form[1], rel=0.15)
        assert row.simulated[0] > 0
    assert len(list(closed_loop_lines(rows))) >= 4
