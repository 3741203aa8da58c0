from __future__ import annotations

import csv
import json

import pytest

from benchmarks.famous_runs.data_parts import data_part
from benchmarks.famous_runs.record import RECORDS, FamousRun, famous_runs
from tests.benchmarks.famous_runs.records import a_run

IN_DATA = [run for run in famous_runs() if run.data_row is not None]


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


def row_of(run: FamousRun) -> dict[str, str]:
    file, _, name = str(run.data_row).partition(":")
    key = "case_id" if file == "train_step.csv" else "id"
    with (RECORDS.parent / file).open(newline="", encoding="utf-8") as rows:
        return next(row for row in csv.DictReader(rows) if row[key] == name)


@pytest.mark.parametrize("run", IN_DATA, ids=lambda run: run.slug)
def test_a_run_that_is_a_row_says_what_the_row_says(run: FamousRun):
    row, published = row_of(run), run.published
    if "unit" in row:
        figures = (published.seconds, published.tokens_per_second_per_gpu, published.teraflops_per_gpu)
        expected = float(row["value"])
        assert [figure for figure in figures if figure is not None] == [expected]
        degrees = {"data_parallel": row["dp"], "tensor_parallel": row["tp"], "pipeline_parallel": row["pp"]}
        batch = row["global_batch"]
    else:
        seconds = published.seconds or run.tokens_per_step / run.gpus / (published.tokens_per_second_per_gpu or 0.0)
        assert seconds == pytest.approx(float(row["measured_step_seconds"]), rel=2e-3)
        degrees = json.loads(row["layout"])
        batch = row["global_batch_size"]
    layout = run.request["layout"]
    assert {name: layout.get(name, 1) for name in degrees} == {
        name: value if isinstance(value, bool) else int(value or 1) for name, value in degrees.items()
    }
    assert run.request["training"]["global_batch_size"] == int(batch)
