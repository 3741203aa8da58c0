"""The tables of step-time accuracy, fitted beside held out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from benchmarks.accuracy.document import Section
from benchmarks.accuracy.step_time.cases import Case
from benchmarks.accuracy.step_time.statistics import BoolArray, FloatArray, errors, kendall_tau, regret, weighted_mean

# The published tables that are printed case by case.
TABLES = (
    "Megatron SC'21 table 1",
    "Megatron SC'21 table 2",
    "selective recompute table 5",
    "Llama 3 table 4",
)
# A pipeline stalled if it took over half as much longer as its stack's slow mode does: few runs are in between.
STALLED_SHARE = 0.5
# A run without a pipeline is slow beyond this multiple of its estimate.
SLOW_MULTIPLE = 2.0
# Rank correlation means little over fewer layouts.
FEWEST_LAYOUTS = 5
PARTS = (("fitted", False), ("held out", True))


def time_sections(
    cases: Sequence[Case],
    estimated: FloatArray,
    low: FloatArray,
    high: FloatArray,
    stalls: FloatArray,
    left_out: Counter[str],
) -> Iterator[Section]:
    """Yield every table. Errors are fractions of the measured, bias is the median signed error."""
    measured = np.array([case.seconds for case in cases])
    held = np.array([case.held_out for case in cases])
    errors_by = partial(_errors_by, cases=cases, estimated=estimated, measured=measured, low=low, high=high, held=held)
    for name, key in _GROUPINGS.items():
        yield Section(name=f"time-by-{name}", title=f"Step time, by {name}", lines=tuple(errors_by(name, key)))
    stalled = tuple(_stalled(cases, estimated, measured, stalls))
    yield Section(name="time-stalled", title="Step time, nanotron's runs that stalled", lines=stalled)
    ranking = tuple(_ranking(cases, estimated, measured, held))
    yield Section(name="time-ranking", title="Step time, rank correlation and regret", lines=ranking)
    for source in TABLES:
        title = f"{source}: model, GPUs, tensor x pipeline x data, ZeRO, recompute; seconds measured, estimated"
        slug = re.sub(r"[^a-z0-9]+", "-", source.lower())
        yield Section(name=f"time-{slug}", title=title, lines=tuple(_table(source, cases, estimated, measured, held)))
    reasons = tuple(f"{count:6d}  {reason}" for reason, count in left_out.most_common())
    yield Section(name="time-left-out", title="Step time, rows that are no case", lines=reasons)


def _kind(case: Case) -> str:
    if case.framework == "nanotron":
        return "nanotron"
    return "others, experts" if case.model.experts_per_token else "others, dense"


_GROUPINGS: Mapping[str, Callable[[Case], str]] = {
    "kind": _kind,
    "framework": lambda case: case.framework,
    "source": lambda case: case.source,
    "GPU": lambda case: case.gpu,
}


def _errors_by(
    title: str,
    key: Callable[[Case], str],
    *,
    cases: Sequence[Case],
    estimated: FloatArray,
    measured: FloatArray,
    low: FloatArray,
    high: FloatArray,
    held: BoolArray,
) -> Iterator[str]:
    names = np.array([key(case) for case in cases])
    heads = "".join(f" | {part:>9}: n  mean  med.   bias cover" for part, _ in PARTS)
    yield f"{title:30}{heads}"
    for name in sorted(set(names.tolist())):
        line = f"{name:30}"
        for _, is_held in PARTS:
            chosen = (names == name) & (held == is_held)
            got = errors(estimated[chosen], measured[chosen], low[chosen], high[chosen])
            line += f" | {got.cases:12d} {_percent(got.mean)} {_percent(got.median)} {_percent(got.bias, '+')}"
            line += f" {_percent(got.coverage)}"
        yield line


def _stalled(cases: Sequence[Case], estimated: FloatArray, measured: FloatArray, stalls: FloatArray) -> Iterator[str]:
    """Yield how many of nanotron's pipelines were in the slow mode, by what they have in common, each once."""
    ours = np.array([case.framework == "nanotron" for case in cases])
    pipelined = ours & (stalls > 0)
    stalled = pipelined & (measured - estimated > STALLED_SHARE * stalls)
    nodes = np.array([case.hardware.gpus.minimum // case.hardware.gpus_per_node for case in cases])
    tensor = np.array([case.layout["tensor_parallel"][0] for case in cases])
    full = np.array([(case.peak_bytes or 0) / case.hardware.limit_bytes for case in cases])
    yield f"{'pipelines':40}  runs stalled  mean error of those that did not"
    left = pipelined
    for name, chosen in (
        ("64 nodes", nodes >= 64),
        ("32 tensor-parallel ranks and more", tensor >= 32),
        ("over 83% of the card by the first rank", full > 0.83),
        ("other, several nodes", nodes > 1),
        ("other, one node", nodes == 1),
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


def _ranking(cases: Sequence[Case], estimated: FloatArray, measured: FloatArray, held: BoolArray) -> Iterator[str]:
    """Yield Kendall's τ and the regret of the first choice for each of nanotron's tables."""
    names = np.array([case.table if case.framework == "nanotron" else "" for case in cases])
    columns = " | ".join(f"{part:>8}{'tau':>7}{'regret':>8}" for part in ("layouts", "fitted", "held out"))
    yield f"{'nanotron table':16}{columns}"
    found: list[list[tuple[int, float, float]]] = [[], [], []]
    for name in sorted(set(names.tolist()) - {""}, key=lambda text: (text.split()[0], int(text.split()[-1]))):
        line = f"{name:16}"
        for place, chosen in enumerate((names == name, (names == name) & ~held, (names == name) & held)):
            count = int(chosen.sum())
            if count < FEWEST_LAYOUTS:
                line += f"{count:8d}{'-':>7}{'-':>8} | "
                continue
            row = (count, kendall_tau(estimated[chosen], measured[chosen]), regret(estimated[chosen], measured[chosen]))
            found[place].append(row)
            line += f"{count:8d}{row[1]:7.2f}{_percent(row[2]):>8} | "
        yield line.rstrip(" |")
    line = f"{'mean of tables':16}"
    for rows in found:
        ones = [1] * len(rows)
        tau, lost = (weighted_mean([row[place] for row in rows], ones) for place in (1, 2))
        line += f"{len(rows):8d}{tau:7.2f}{_percent(lost):>8} | "
    yield line.rstrip(" |")


def _table(
    source: str, cases: Sequence[Case], estimated: FloatArray, measured: FloatArray, held: BoolArray
) -> Iterator[str]:
    for index, case in enumerate(cases):
        if case.source != source:
            continue
        tensor, pipeline, data = (
            case.layout[key][0] for key in ("tensor_parallel", "pipeline_parallel", "data_parallel")
        )
        recompute = ("none", "selective", "full")[case.layout["recompute"][0]]
        yield (
            f"{case.model_name:14}{case.hardware.gpus.minimum:6d}  {f'{tensor}x{pipeline}x{data}':10}"
            f" {case.layout['zero_stage'][0]} {recompute:10}"
            f"{measured[index]:9.2f}{estimated[index]:9.2f} {_percent(estimated[index] / measured[index] - 1, '+')}"
            f"{'  held out' if held[index] else ''}"
        )


def _percent(value: float, sign: str = "") -> str:
    return "    -" if not np.isfinite(value) else f"{100 * value:{sign}4.0f}%"
