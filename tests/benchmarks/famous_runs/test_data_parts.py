from __future__ import annotations

import pytest

from benchmarks.famous_runs.data_parts import data_part
from tests.benchmarks.famous_runs.records import a_run


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("train_step.csv:mtnlg-530b-2240", "fitted"),
        ("train_step.csv:mtnlg-530b-2800", "held out"),
        ("train_step.csv:a-row-that-no-case-was-made-of", "never fitted"),
        ("train_step_cases.csv:tinyllama-16", "never fitted"),
        (None, "never fitted"),
    ],
)
def test_a_run_is_of_the_part_that_its_row_is(row: str | None, expected: str):
    assert data_part(a_run(data_row=row)) == expected
