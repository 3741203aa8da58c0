"""The tables of the memory benchmark: fitted rows beside those held out."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from benchmarks.accuracy.document import Section
from benchmarks.accuracy.peak_memory.predictions import MemoryPrediction

HEADINGS = ("cases", "mean", "median", "bias", "<=5%", "<=10%", "covered")
WIDTHS = (6, 6, 7, 7, 6, 6, 8)


def memory_sections(predictions: Sequence[MemoryPrediction], left_out: Counter[tuple[str, str]]) -> Iterator[Section]:
    """Yield every table."""
    by_source = point_table(predictions, lambda one: f"{one.case.kind} {one.case.source}")
    reasons = tuple(f"{count:5} {name}: {reason}" for (name, reason), count in sorted(left_out.items()))
    for name, title, lines in (
        ("memory-by-stack", "Peak memory, by stack", tuple(point_table(predictions, _by_stack))),
        ("memory-by-source", "Peak memory, by source", tuple(by_source)),
        ("memory-fits", "Fits, against what happened", tuple(confusion_table(predictions))),
        ("memory-left-out", "Peak memory, rows that are no case and those that the planner refuses", reasons),
    ):
        yield Section(name=name, title=title, lines=lines)


def point_table(predictions: Sequence[MemoryPrediction], name_of: Callable[[MemoryPrediction], str]) -> Iterator[str]:
    """Yield one line a group: absolute error in percent, bias, shares and coverage, fitted then held out."""
    points = sorted((one for one in predictions if one.case.is_point), key=name_of)
    heading = " ".join(name.rjust(width) for name, width in zip(HEADINGS, WIDTHS, strict=True))
    yield f"{'':44} {'fitted'.center(len(heading))} | {'held out'.center(len(heading))}"
    yield f"{'':44} {heading} | {heading}"
    for name, group in groupby(points, key=name_of):
        members = list(group)
        halves = [[one for one in members if one.case.is_held_out is held] for held in (False, True)]
        yield f"{name[:44]:44} " + " | ".join(_figures(half) for half in halves)


def _figures(predictions: Sequence[MemoryPrediction]) -> str:
    if not predictions:
        return " ".join(text.rjust(width) for text, width in zip(("0", *["-"] * 6), WIDTHS, strict=True))
    errors = [one.error for one in predictions]
    absolute = [abs(error) for error in errors]
    values = (
        str(len(errors)),
        f"{statistics.mean(absolute):.1%}",
        f"{statistics.median(absolute):.1%}",
        f"{statistics.mean(errors):+.1%}",
        f"{_share(error <= 0.05 for error in absolute):.0%}",
        f"{_share(error <= 0.10 for error in absolute):.0%}",
        f"{_share(one.is_within_bounds for one in predictions):.0%}",
    )
    return " ".join(text.rjust(width) for text, width in zip(values, WIDTHS, strict=True))


def _share(hits: Iterator[bool]) -> float:
    counted = list(hits)
    return sum(counted) / len(counted)


def confusion_table(predictions: Sequence[MemoryPrediction]) -> Iterator[str]:
    """Yield, by stack and part, how often `fits` agreed with what happened."""
    yield f"{'':24} {'part':>9} {'fits, ran':>10} {'no, failed':>11} {'fits, failed':>13} {'no, ran':>8} {'right':>7}"
    key = _by_stack
    for name, group in groupby(sorted(predictions, key=key), key=key):
        members = list(group)
        for part, held in (("fitted", False), ("held out", True)):
            some = [one for one in members if one.case.is_held_out is held]
            if some:
                counts = [
                    sum(one.fits is fits and one.case.ran is ran for one in some)
                    for fits, ran in ((True, True), (False, False), (True, False), (False, True))
                ]
                right = (counts[0] + counts[1]) / len(some)
                told = f"{counts[0]:>10} {counts[1]:>11} {counts[2]:>13} {counts[3]:>8} {right:>7.1%}"
                yield f"{name[:24]:24} {part:>9} {told}"


def _by_stack(prediction: MemoryPrediction) -> str:
    return prediction.case.stack


def case_lines(predictions: Sequence[MemoryPrediction], stack: str) -> Iterator[str]:
    """Yield every case of the stacks whose name contains `stack`, worst first."""
    chosen = [one for one in predictions if stack.lower() in one.case.stack.lower() and one.case.measured_bytes]
    for one in sorted(chosen, key=lambda one: -abs(one.error)):
        measured = (one.case.measured_bytes or 0.0) / 2**30
        layout = one.case.question.layout
        yield (
            f"{one.error:+7.1%} {measured:7.2f} -> {one.predicted_bytes / 2**30:7.2f} GiB {one.case.kind[:5]:5} "
            f"{'held' if one.case.is_held_out else '':4} d{layout.data_parallel} t{layout.tensor_parallel} "
            f"p{layout.pipeline_parallel} c{layout.context_parallel} z{layout.zero_stage} "
            f"b{one.case.question.micro_batch_size} {one.phase} {one.case.case_id}"
        )
