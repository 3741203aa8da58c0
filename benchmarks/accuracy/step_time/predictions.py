"""Every timed run asked of the service, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.accuracy.asking import Refused, Service
from benchmarks.accuracy.document import Section
from benchmarks.accuracy.step_time.cases import all_cases
from benchmarks.accuracy.step_time.kernel_runs import kernel_section
from benchmarks.accuracy.step_time.ranking import ranking_sections
from benchmarks.accuracy.step_time.report import detail_sections, error_sections
from benchmarks.accuracy.step_time.statistics import FloatArray
from benchmarks.accuracy.step_time.timed_runs import SWEEP, TimedAnswer, answers, fresh_runs, run_of
from benchmarks.accuracy.verdicts import Outcome
from plimsoll.planners.timing.efficiency import load_efficiency

FULL_FRACTION = 0.83
# Their memory stands among the memory cases.
COUNTED_AMONG_MEMORY = ("SimuMax", "torchtitan", "foundation-model-stack", "AnswerDotAI", "pytorch/torchtune")


def step_time_sections(service: Service) -> Iterator[Section]:
    """Ask for every run and yield the tables."""
    cases, left_out = all_cases()
    seen = answers(map(run_of, cases), service)
    unseen = answers(fresh_runs(), service)
    yield from error_sections([one.judged for one in (*seen, *unseen)])
    yield from ranking_sections([*seen, *unseen])
    yield kernel_section(unseen)
    full = np.array([(case.peak_bytes or 0) > FULL_FRACTION * case.hardware.limit_bytes for case in cases])
    yield from detail_sections(cases, _seconds(seen), _stalls(seen), full)
    reasons = tuple(f"{count:6d}  {reason}" for reason, count in left_out.most_common())
    yield Section(name="time-left-out", title="Step time, rows that are no case", lines=reasons)


def timed_outcomes(service: Service) -> list[Outcome]:
    """Return the verdicts on timed runs, all of which ran, but for those that are among the memory cases."""
    runs = [*map(run_of, all_cases()[0]), *fresh_runs()]
    some = [run for run in runs if run.kind != SWEEP and not run.source.startswith(COUNTED_AMONG_MEMORY)]
    return [
        Outcome(
            group=f"{one.run.stack}, timed runs",
            # No constant of memory was fitted to them.
            is_seen=False,
            fits=None if isinstance(one.answer, Refused) else bool(one.answer["fits"]),
            ran=True,
        )
        for one in answers(some, service)
    ]


def _seconds(told: Sequence[TimedAnswer]) -> FloatArray:
    return np.array([np.nan if one.step is None else one.step["seconds"] for one in told])


def _stalls(told: Sequence[TimedAnswer]) -> FloatArray:
    """Return how much longer each step may take in its stack's slow mode: what the upper bound has beyond the band."""
    stalls = np.zeros(len(told))
    for index, one in enumerate(told):
        if one.step is not None and one.run.kind == SWEEP:
            _, high = load_efficiency(one.run.stack, one.run.gpu).band(experts=False)
            stalls[index] = max(one.step["high_seconds"] - high * one.step["seconds"], 0.0)
    return stalls
