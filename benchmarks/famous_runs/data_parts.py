"""Whether constants were fitted to a run: to be said beside every comparison with it."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from benchmarks.accuracy.step_time.cases import all_cases
from benchmarks.famous_runs.record import FamousRun

FITTED, HELD_OUT, NEVER_FITTED = "fitted", "held out", "never fitted"
# Rows of this file are fitted to, three of ten held out; no fit has used those of `train_step_cases.csv`.
FITTED_FILE = "train_step.csv"


def data_part(run: FamousRun) -> str:
    """Return which part of the data a run is; a row that no case could be made of was never fitted."""
    file, _, row = (run.data_row or "").partition(":")
    return _parts().get(row, NEVER_FITTED) if file == FITTED_FILE else NEVER_FITTED


@functools.cache
def _parts() -> Mapping[str, str]:
    cases, _ = all_cases()
    return {case.table: HELD_OUT if case.held_out else FITTED for case in cases}
