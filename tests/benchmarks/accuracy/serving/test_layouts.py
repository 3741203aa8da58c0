"""Tests of the errors by layout."""

from __future__ import annotations

import dataclasses

from benchmarks.accuracy.serving.latencies import latency_cases
from benchmarks.accuracy.serving.layouts import LAYOUTS, axes_of, layout_lines


def test_every_row_is_of_one_layout():
    cases, _ = latency_cases()
    assert all(sum(has(axes_of(case)) for _, has in LAYOUTS) == 1 for case in cases)


def test_a_rows_layout_is_read_from_its_degrees():
    cases, _ = latency_cases()
    # engine, version, model, gpu, precision, tp, pp, attn_dp, moe_ep.
    printed = {
        "e||m|g|fp8|8|1|1|1": "tensor", "e||m|g|fp8|8|1|1|8": "tensor, whole experts",
        "e||m|g|fp8|1|1|8|8": "attention data", "e||m|g|fp8||||": "one GPU", "e||m|g|fp8|4|2|1|1": "pipeline",
    }  # fmt: skip
    for deployment, layout in printed.items():
        axes = axes_of(dataclasses.replace(cases[0], deployment=deployment))
        assert [name for name, has in LAYOUTS if has(axes)] == [layout]


def test_layouts_without_rows_are_shown_as_such():
    lines = list(layout_lines(latency_cases()[0]))
    none = [line for line in lines if "prefill apart" in line or "pipeline" in line]
    assert len(none) == 4
    assert all(line.split()[-3:] == ["0", "-", "-"] for line in none)
