"""Tests of throughput at full load beside NVIDIA's tables."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.accuracy.serving.full_load import FullLoad, full_load_lines, full_loads


@pytest.fixture(scope="module")
def rows():
    return full_loads()


def test_every_row_is_planned(rows):
    assert len(rows) == 106
    assert min(row.planned for row in rows) > 0


@pytest.mark.parametrize(
    # The targets of the serving planner's rates: NVLink's cards are never fitted, L40S were looked at once.
    ("gpu", "most"),
    [("A100-SXM4-80GB", 0.08), ("H100 80GB", 0.13), ("H200 141GB", 0.10), ("L40S", 0.25)],
)
def test_rates_of_models_that_no_fit_saw_come_near(rows, gpu, most):
    assert np.mean([abs(row.planned / row.measured - 1) for row in rows if row.gpu == gpu]) < most


def test_errors_are_told_by_model_and_card():
    # 2 and 4 tokens/s where 1 and 4 were measured: 100 and 0 % off.
    rows = (FullLoad(model="m", gpu="g", measured=1, planned=2), FullLoad(model="m", gpu="g", measured=4, planned=4))
    _, row, total = full_load_lines(rows)
    assert row.split()[:4] == ["m", "g", "2", "50.0%"]
    assert total.split()[:3] == ["all", "all", "2"]
