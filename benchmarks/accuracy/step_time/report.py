"""The tables of step-time accuracy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from benchmarks.accuracy.document import Section
from benchmarks.accuracy.judged import Judged, parts_table, refusal_lines, source_table
from benchmarks.accuracy.step_time.cases import Case
from benchmarks.accuracy.step_time.ranking import STALLED_SHARE
from benchmarks.accuracy.step_time.statistics import BoolArray, FloatArray, kendall_tau, regret, weighted_mean

# The published tables that are printed case by case.
TABLES = (
    "Megatron SC'21 table 1",
    "Megatron SC'21 table 2",
    "selective recompute table 5",
    "Llama 3 table 4",
)
# A run without a pipeline is slow beyond this multiple of its estimate.
SLOW_MULTIPLE = 2.0
# Rank correlation means little over fewer layouts.
FEWEST_LAYOUTS = 5


def error_sections(judged: Sequence[Judged]) -> Iterator[Section]:
    """Yield the errors by kind, stack and card on both parts, by source, and the refusals."""
    by: Mapping[str, Callable[[Judged], str]] = {
        "kind": lambda one: one.kind,
        "framework": lambda one: one.stack,
        "GPU": lambda one: one.gpu,
    }
    for name, key in by.items():
        yield Section(name=f"time-by-{name}", title=f"Step time, by {name}", lines=tuple(parts_table(judged, key)))
    lines = tuple(source_table(judged, lambda one: f"{one.source[:32]}, {one.stack}, {one.kind}"))
    yield Section(name="time-by-source", title="Step time, by source", lines=lines)
    refused = refusal_lines((one.source, one.refusal) for one in judged if one.ratio is None)
    yield Section(name="time-refused", title="Step time, runs that the service refuses", lines=tuple(refused))


def detail_sections(
    cases: Sequence[Case], estimated: FloatArray, stalls: FloatArray, shown_as_full: BoolArray
) -> Iterator[Section]:
    """Yield what is told of nanotron's sweep, and the papers' tables; an estimate is NaN where the service refused."""
    measured = np.array([case.seconds for case in cases])
    stalled = tuple(_stalled(cases, estimated, measured, stalls, shown_as_full))
    yield Section(name="time-stalled", title="Step time, nanotron's runs that stalled", lines=stalled)
    ranking = tuple(_ranking(cases, estimated, measured, _in_slow_mode(estimated, measured, stalls)))
    yield Section(name="time-ranking", title="Step time, rank correlation and regret", lines=ranking)
    for source in TABLES:
        title = f"{source}: model, GPUs, tensor x pipeline x data, ZeRO, recompute; seconds measured, estimated"
        slug = re.sub(r"[^a-z0-9]+", "-", source.lower())
        yield Section(name=f"time-{slug}", title=title, lines=tuple(_table(source, cases, estimated, measured)))


def _in_slow_mode(estimated: FloatArray, measured: FloatArray, stalls: FloatArray) -> BoolArray:
    """Return which pipelines took longer than estimated by over half of what their stack's slow mode adds."""
    result: BoolArray = (stalls > 0) & (measured - estimated > STALLED_SHARE * stalls)
    return result


def _stalled(
    cases: Sequence[Case], estimated: FloatArray, measured: FloatArray, stalls: FloatArray, full: BoolArray
) -> Iterator[str]:
    """Yield how many of nanotron's pipelines were in the slow mode, by what they have in common, each once."""
    ours = np.array([case.framework == "nanotron" for case in cases])
    pipelined = ours & np.array([case.layout.get("pipeline_parallel", (1,))[0] > 1 for case in cases])
    stalled = _in_slow_mode(estimated, measured, stalls)
    nodes = np.array([case.hardware.gpus.minimum // case.hardware.gpus_per_node for case in cases])
    tensor = np.array([case.layout["tensor_parallel"][0] for case in cases])
    yield f"{'pipelines':40}  runs stalled  mean error of those that did not"
    left = pipelined
    for name, chosen in (
        ("64 nodes", nodes >= 64),
        ("32 tensor-parallel ranks and more", tensor >= 32),
        ("over 83% of the card by the first rank", full),
        ("other, several nodes", nodes > 1),
        ("other, one node", nodes <= 1),
    ):
        some = left & chosen
        fine = some & ~stalled
        error = np.abs(estimated[fine] / measured[fine] - 1).mean() if fine.any() else np.nan
        yield f"{name:40}{int(some.sum()):6d}{int((some & stalled).sum()):8d}  {_percent(error)}"
        left = left & ~chosen
    yield f"{'no pipeline':40}  runs over {SLOW_MULTIPLE:g} times the estimate"
    for name, chosen in (("64 nodes", nodes >= 64), ("fewer", nodes < 64)):
        some = ours & ~pipelined & chosen
        yield f"{name:40}{int(some.sum()):6d}{int((some & (measured > SLOW_MULTIPLE * estimated)).sum()):8d}"


def _ranking(cases: Sequence[Case], estimated: FloatArray, measured: FloatArray, stalled: BoolArray) -> Iterator[str]:
    """Yield Kendall's τ and the regret of the first choice for each of nanotron's tables."""
    names = np.array([case.table if case.framework == "nanotron" else "" for case in cases])
    halves = (("all", np.isfinite(estimated)), ("not stalled", np.isfinite(estimated) & ~stalled))
    yield f"{'nanotron table':16}" + " | ".join(f"{part:>12}{'tau':>7}{'regret':>8}" for part, _ in halves)
    tables = sorted(set(names.tolist()) - {""}, key=lambda text: (text.split()[0], int(text.split()[-1])))
    found = [[_rank((names == name) & part, estimated, measured) for _, part in halves] for name in tables]
    for name, rows in zip(tables, found, strict=True):
        yield f"{name:16}" + " | ".join(_rank_cells(*row) for row in rows)
    means = []
    for number in range(len(halves)):
        ranked = [rows[number] for rows in found if rows[number][0] >= FEWEST_LAYOUTS]
        means.append([weighted_mean([row[place] for row in ranked], [1] * len(ranked)) for place in (1, 2)])
        means[-1].insert(0, len(ranked))
    yield f"{'mean of tables':16}" + " | ".join(_rank_cells(int(row[0]), row[1], row[2]) for row in means)


def _rank(chosen: BoolArray, estimated: FloatArray, measured: FloatArray) -> tuple[int, float, float]:
    """Return how many layouts were chosen, their τ and the regret of the first."""
    count = int(chosen.sum())
    if count < FEWEST_LAYOUTS:
        return count, np.nan, np.nan
    return count, kendall_tau(estimated[chosen], measured[chosen]), regret(estimated[chosen], measured[chosen])


def _rank_cells(count: int, tau: float, lost: float) -> str:
    return f"{count:12d}{'-':>7}{'-':>8}" if np.isnan(lost) else f"{count:12d}{tau:7.2f}{_percent(lost):>8}"


def _table(source: str, cases: Sequence[Case], estimated: FloatArray, measured: FloatArray) -> Iterator[str]:
    for index, case in enumerate(cases):
        if case.source != source:
            continue
        tensor, pipeline, data = (
            case.layout[key][0] for key in ("tensor_parallel", "pipeline_parallel", "data_parallel")
        )
        recompute = str(case.request["training"].get("recompute", "open"))
        yield (
            f"{case.model_name:14}{case.hardware.gpus.minimum:6d}  {f'{tensor}x{pipeline}x{data}':10}"
            f" {case.layout['zero_stage'][0]} {recompute:10}"
            f"{measured[index]:9.2f}{estimated[index]:9.2f} {_percent(estimated[index] / measured[index] - 1, '+')}"
        )


def _percent(value: float, sign: str = "") -> str:
    return "    -" if not np.isfinite(value) else f"{100 * value:{sign}4.0f}%"
