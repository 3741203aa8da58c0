"""The tables of step-time accuracy, fitted beside held out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.accuracy_time.cases import Case
from benchmarks.accuracy_time.statistics import BoolArray, FloatArray, errors, kendall_tau, regret, weighted_mean

# The published tables that are printed case by case.
TABLES = (
    "Megatron SC'21 table 1",
    "Megatron SC'21 table 2",
    "selective recompute table 5",
    "Llama 3 table 4",
)
# Runs beyond this multiple stalled: like runs beside them, of the same layout but for one degree, did not.
STALLED_MULTIPLE = 2.5
# Rank correlation means little over fewer layouts.
FEWEST_LAYOUTS = 5
PARTS = (("fitted", False), ("held out", True))


def print_report(
    cases: Sequence[Case], estimated: FloatArray, low: FloatArray, high: FloatArray, left_out: Counter[str]
) -> None:
    """Print every table."""
    measured = np.array([case.seconds for case in cases])
    held = np.array([case.held_out for case in cases])
    print("Step time: estimated against measured seconds. Errors are fractions of the measured, bias is the median")
    print("signed error, cover is the share inside the answer's low to high. Three of ten configurations are held out")
    print("of every fit, by a checksum of the configuration.\n")
    for title, key in (
        ("source", lambda case: case.source),
        ("framework", lambda case: case.framework),
        ("GPU", lambda case: case.gpu),
        ("all", _kind),
    ):
        _errors_by(title, key, cases, estimated, measured, low, high, held)
    _stalled(cases, estimated, measured, held)
    _ranking(cases, estimated, measured, held)
    _tables(cases, estimated, measured, held)
    print("\nRows that are no case")
    for reason, count in left_out.most_common():
        print(f"{count:6d}  {reason}")


def _kind(case: Case) -> str:
    if case.framework == "nanotron":
        return "nanotron"
    return "others, experts" if case.model.experts_per_token else "others, dense"


def _errors_by(
    title: str,
    key: Callable[[Case], str],
    cases: Sequence[Case],
    estimated: FloatArray,
    measured: FloatArray,
    low: FloatArray,
    high: FloatArray,
    held: BoolArray,
) -> None:
    names = np.array([key(case) for case in cases])
    heads = "".join(f" | {part:>9}: n  mean  med.   bias cover" for part, _ in PARTS)
    print(f"{title:30}{heads}")
    for name in sorted(set(names.tolist())):
        line = f"{name:30}"
        for _, is_held in PARTS:
            chosen = (names == name) & (held == is_held)
            got = errors(estimated[chosen], measured[chosen], low[chosen], high[chosen])
            line += f" | {got.cases:12d} {_percent(got.mean)} {_percent(got.median)} {_percent(got.bias, '+')}"
            line += f" {_percent(got.coverage)}"
        print(line)
    print()


def _stalled(cases: Sequence[Case], estimated: FloatArray, measured: FloatArray, held: BoolArray) -> None:
    """Print how many of nanotron's runs took far longer than their like, and the errors of the others."""
    ours = np.array([case.framework == "nanotron" for case in cases])
    went_wrong = ours & (measured > STALLED_MULTIPLE * estimated)
    for part, is_held in PARTS:
        chosen = ours & (held == is_held)
        signed = estimated[chosen & ~went_wrong] / measured[chosen & ~went_wrong] - 1
        print(
            f"nanotron, {part}: {int((chosen & went_wrong).sum())} of {int(chosen.sum())} runs took over"
            f" {STALLED_MULTIPLE:g} times the estimate; mean error of the others {_percent(np.abs(signed).mean())}"
        )
    print()


def _ranking(cases: Sequence[Case], estimated: FloatArray, measured: FloatArray, held: BoolArray) -> None:
    """Print Kendall's τ and the regret of the first choice for each of nanotron's tables."""
    names = np.array([case.table if case.framework == "nanotron" else "" for case in cases])
    print(f"{'nanotron table':16}{'layouts':>8}{'tau':>7}{'regret':>8} | {'fitted':>7}{'tau':>7}{'regret':>8}", end="")
    print(f" | {'held out':>8}{'tau':>7}{'regret':>8}")
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
        print(line.rstrip(" |"))
    line = f"{'mean of tables':16}"
    for rows in found:
        ones = [1] * len(rows)
        tau, lost = (weighted_mean([row[place] for row in rows], ones) for place in (1, 2))
        line += f"{len(rows):8d}{tau:7.2f}{_percent(lost):>8} | "
    print(line.rstrip(" |"))


def _tables(cases: Sequence[Case], estimated: FloatArray, measured: FloatArray, held: BoolArray) -> None:
    for source in TABLES:
        print(f"\n{source}: model, GPUs, tensor x pipeline x data, ZeRO, recompute; seconds measured, estimated")
        for index, case in enumerate(cases):
            if case.source != source:
                continue
            tensor, pipeline, data = (
                case.layout[key][0] for key in ("tensor_parallel", "pipeline_parallel", "data_parallel")
            )
            recompute = ("none", "selective", "full")[case.layout["recompute"][0]]
            print(
                f"{case.model_name:14}{case.hardware.gpus.minimum:6d}  {f'{tensor}x{pipeline}x{data}':10}"
                f" {case.layout['zero_stage'][0]} {recompute:10}"
                f"{measured[index]:9.2f}{estimated[index]:9.2f} {_percent(estimated[index] / measured[index] - 1, '+')}"
                f"{'  held out' if held[index] else ''}"
            )


def _percent(value: float, sign: str = "") -> str:
    return "    -" if not np.isfinite(value) else f"{100 * value:{sign}4.0f}%"
