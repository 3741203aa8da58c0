"""The tables of the memory benchmark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.accuracy.document import Section
from benchmarks.accuracy.judged import Judged, parts_table, refusal_lines, source_table
from benchmarks.accuracy.peak_memory.predictions import MemoryPrediction
from benchmarks.accuracy.verdicts import Outcome, verdict_table


def memory_sections(predictions: Sequence[MemoryPrediction], left_out: Counter[tuple[str, str]]) -> Iterator[Section]:
    """Yield every table."""
    points = [judged(one) for one in predictions if one.case.is_point]
    everything = parts_table(points, lambda _: "all")
    by_kind, by_stack = parts_table(points, lambda one: one.kind), parts_table(points, lambda one: one.stack)
    by_source = source_table(points, lambda one: f"{one.kind} {one.source}")
    reasons = tuple(f"{count:5} {name}: {reason}" for (name, reason), count in sorted(left_out.items()))
    refused = ((one.case.source, _reason(one)) for one in predictions if one.refused is not None)
    for name, title, lines in (
        ("memory-by-kind", "Peak memory, by what was read", (*by_kind, *list(everything)[2:])),
        ("memory-by-stack", "Peak memory, by stack", tuple(by_stack)),
        ("memory-by-source", "Peak memory, by what was read of which source", tuple(by_source)),
        ("memory-refused", "Peak memory, runs that the service refuses", tuple(refusal_lines(refused))),
        ("memory-left-out", "Peak memory, rows that are no case", reasons),
    ):
        yield Section(name=name, title=title, lines=lines)


def verdict_section(outcomes: Sequence[Outcome]) -> Section:
    """Return the table of verdicts against what happened."""
    title = "Verdicts of the service, against what happened"
    return Section(name="memory-fits", title=title, lines=tuple(verdict_table(outcomes)))


def judged(prediction: MemoryPrediction) -> Judged:
    """Return a case whose peak was measured, beside its answer."""
    case, measured = prediction.case, prediction.case.measured_bytes
    estimated = prediction.predicted_bytes
    answered = prediction.refused is None and measured is not None
    return Judged(
        source=case.source,
        stack=case.stack,
        gpu=str(case.request["hardware"]["gpu"]),
        kind=f"{case.kind}, {case.place}" if case.place else case.kind,
        is_seen=case.is_seen,
        weight=case.weight,
        ratio=estimated / measured if answered and measured else None,
        band=(prediction.low_bytes / estimated, prediction.high_bytes / estimated) if answered else (1.0, 1.0),
        refusal=_reason(prediction),
    )


def outcome(prediction: MemoryPrediction) -> Outcome:
    """Return whether a case ran, beside the verdict on it."""
    case = prediction.case
    fits = prediction.fits if prediction.refused is None else None
    return Outcome(group=case.stack, is_seen=case.is_seen, fits=fits, ran=case.ran)


def _reason(prediction: MemoryPrediction) -> str:
    return "" if prediction.refused is None else prediction.refused.reasons[0]


def case_lines(predictions: Sequence[MemoryPrediction], stack: str) -> Iterator[str]:
    """Yield every case of the stacks whose name contains `stack`, worst first."""
    chosen = [
        one
        for one in predictions
        if stack.lower() in one.case.stack.lower() and one.case.measured_bytes and one.refused is None
    ]
    for one in sorted(chosen, key=lambda one: -abs(one.error)):
        measured = (one.case.measured_bytes or 0.0) / 2**30
        layout, training = one.case.request["layout"], one.case.request["training"]
        degrees = " ".join(f"{name[0]}{layout.get(f'{name}_parallel', 1)}" for name in DEGREES)
        yield (
            f"{one.error:+7.1%} {measured:7.2f} -> {one.predicted_bytes / 2**30:7.2f} GiB {one.case.kind[:5]:5} "
            f"{degrees} z{layout.get('zero_stage', 0)} b{training.get('micro_batch_size', '-')} {one.phase} "
            f"{one.case.case_id}"
        )


DEGREES = ("data", "tensor", "pipeline", "context")
