"""Tests of the chart of measured and planned times."""

from __future__ import annotations

import pytest

from benchmarks.accuracy.serving.chart import IMAGE, PANELS, chart
from benchmarks.accuracy.serving.latencies import latency_cases


@pytest.fixture(scope="module")
def drawn() -> str:
    return chart(latency_cases()[0])


def test_every_panel_has_points_a_band_and_the_line_of_the_plan(drawn):
    panels = drawn.split("<g ")[1:]
    assert len(panels) == len(PANELS)
    assert all(panel.count("<circle") >= 10 for panel in panels)
    assert all((panel.count("<rect"), panel.count("<line")) == (1, 1) for panel in panels)


def test_the_page_shows_the_runs_on_record(drawn):
    shown = IMAGE.read_text(encoding="utf-8")
    assert shown.count("<circle") == drawn.count("<circle")
    assert all(panel.title in shown for panel in PANELS)
