"""The planner's estimate of every measured step, as tables."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.accuracy.document import Section
from benchmarks.accuracy.step_time.cases import all_cases
from benchmarks.accuracy.step_time.estimates import estimated_seconds, grouped, planned_seconds, stalls
from benchmarks.accuracy.step_time.fresh_runs import fresh_sections
from benchmarks.accuracy.step_time.kernel_runs import kernel_sections
from benchmarks.accuracy.step_time.report import time_sections
from plimsoll.planners.timing.efficiency import load_efficiency


def step_time_sections() -> Iterator[Section]:
    """Ask the planner for every case and yield the tables."""
    cases, left_out = all_cases()
    groups = grouped(cases)
    estimated = estimated_seconds(groups, len(cases), planned_seconds)
    stalled = estimated_seconds(groups, len(cases), stalls)
    ranges = [
        load_efficiency(case.framework, case.gpu).band(experts=bool(case.model.experts_per_token)) for case in cases
    ]
    low, high = np.array(ranges).T
    yield from kernel_sections()
    yield from fresh_sections()
    yield from time_sections(cases, estimated, low, high + stalled / estimated, stalled, left_out)
