"""The measured cases in the short form that the planner ships, to name the nearest one in its answers."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from benchmarks.accuracy.asking import question_of
from benchmarks.accuracy.peak_memory.cases import CARD
from benchmarks.accuracy.peak_memory.predictions import MemoryPrediction
from plimsoll.planners.memory import nearest

MEASURED_CASES = Path(nearest.__file__).parent / nearest.FILE_NAME


def write_measured_cases(predictions: Sequence[MemoryPrediction]) -> int:
    """Write one line for each configuration of the sources that profiles were made by, and return how many there are.

    A profile is `measured` exactly where it has such a line.
    """
    lines: dict[tuple[str | int, ...], str] = {}
    for one in predictions:
        if not (one.case.is_point and one.case.is_seen) or one.case.kind == CARD or one.refused is not None:
            continue
        asked = question_of(one.case.request)
        layout = asked.layout
        key = (
            asked.framework,
            asked.method,
            asked.recompute.mode if asked.recompute else "none",
            asked.model.parameters,
            asked.hardware.gpus.minimum,
            layout.tensor_parallel or 1,
            layout.pipeline_parallel or 1,
            layout.context_parallel or 1,
            (asked.micro_batch_size or 1) * asked.sequence_length,
        )
        lines.setdefault(key, f"{1 / (1 + one.error):.3f}")
    with MEASURED_CASES.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(nearest.COLUMNS)
        writer.writerows([*key, ratio] for key, ratio in sorted(lines.items(), key=lambda entry: str(entry[0])))
    return len(lines)
