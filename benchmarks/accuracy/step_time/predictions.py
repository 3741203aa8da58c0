"""The planner's estimate of every measured step, as tables."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.accuracy.document import Section
from benchmarks.accuracy.step_time.cases import all_cases
from benchmarks.accuracy.step_time.estimates import estimated_seconds, grouped, planned_seconds
from benchmarks.accuracy.step_time.report import time_sections
from planners.timing.efficiency import load_efficiency


def step_time_sections() -> Iterator[Section]:
    """Ask the planner for every case and yield the tables."""
    cases, left_out = all_cases()
    estimated = estimated_seconds(grouped(cases), len(cases), planned_seconds)
    ranges = [
        load_efficiency(case.framework, case.gpu).band(experts=bool(case.model.experts_per_token)) for case in cases
    ]
    low, high = np.array(ranges).T
    yield from time_sections(cases, estimated, low, high, left_out)
