"""Fit the efficiencies to the fitted part of the published runs, and write them into their data files.

    python -m benchmarks.accuracy.step_time.fit [--write]

Least squares on the logarithm of estimated over measured seconds, by
Levenberg-Marquardt, with Huber's weights so that runs that went wrong (a bad
node, a retry) do not pull. Each source weighs as the square root of its cases.
A stack may have a slow mode (`planners/timing/stalls.py`): each run is fitted by the mode that is nearer to it, and
its upper bound holds the slow one. Parameters stay inside physical bounds. `low` and `high` of a stack are set by
hand, from what fits without a source make of it (`left_out.py` beside this file).
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.step_time.cases import Case, all_cases
from benchmarks.accuracy.step_time.estimates import Group, grouped
from benchmarks.accuracy.step_time.statistics import FloatArray
from plimsoll.planners.timing.efficiency import Efficiency, load_efficiency
from plimsoll.planners.timing.stalls import stall_seconds
from plimsoll.planners.timing.step import step_seconds

# Beyond this error (in logarithms, about 10 %) a case pulls with a constant force only (Huber 1964): the mean error is
# to be least, and one published run in ten stalled.
HUBER = 0.1
ITERATIONS = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One figure of one data file, with its physical bounds."""

    folder: str
    file: str
    key: str
    low: float
    high: float
    step: float


def _fraction(folder: str, file: str, key: str, low: float, high: float = 1.0) -> Parameter:
    return Parameter(folder=folder, file=file, key=key, low=low, high=high, step=0.01)


def _size(folder: str, file: str, key: str, low: float, high: float) -> Parameter:
    return Parameter(folder=folder, file=file, key=key, low=low, high=high, step=(high - low) / 200)


PARAMETERS: tuple[Parameter, ...] = (
    _fraction("gpus", "ampere", "matmul_peak_fraction", 0.5, 0.90),
    _size("gpus", "ampere", "matmul_half_features", 32, 1024),
    _size("gpus", "ampere", "matmul_half_tokens", 16, 1024),
    _fraction("gpus", "ampere", "attention_peak_fraction", 0.3, 0.75),
    _fraction("gpus", "ampere", "link_fraction", 0.5, 0.9),
    _fraction("gpus", "ampere", "network_fraction", 0.2, 0.95),
    _fraction("gpus", "hopper", "matmul_peak_fraction", 0.4, 0.82),
    _fraction("gpus", "hopper", "low_precision_peak_fraction", 0.3, 0.80),
    _size("gpus", "hopper", "matmul_half_features", 32, 2048),
    _size("gpus", "hopper", "matmul_half_tokens", 16, 1024),
    _fraction("gpus", "hopper", "attention_peak_fraction", 0.3, 0.75),
    _fraction("gpus", "blackwell", "matmul_peak_fraction", 0.3, 0.85),
    _fraction("gpus", "blackwell", "low_precision_peak_fraction", 0.3, 0.85),
    _size("gpus", "blackwell", "matmul_half_features", 32, 2048),
    _fraction("gpus", "blackwell", "attention_peak_fraction", 0.3, 0.75),
    _fraction("gpus", "blackwell-ultra", "low_precision_peak_fraction", 0.3, 0.85),
    _size("stacks", "megatron", "traffic_multiple", 0.8, 3.0),
    _fraction("stacks", "megatron", "data_overlap_fraction", 0.0),
    _fraction("stacks", "megatron", "tensor_overlap_fraction", 0.0),
    _size("stacks", "megatron", "exposed_sends", 0.0, 2.0),
    _fraction("stacks", "megatron", "expert_overlap_fraction", 0.0),
    _size("stacks", "megatron", "host_expert_layer_seconds", 0.0, 0.02),
    _size("stacks", "megatron", "expert_weight_multiple", 1.0, 20.0),
    _size("stacks", "composer", "traffic_multiple", 0.8, 5.0),
    _fraction("stacks", "composer", "data_overlap_fraction", 0.0),
    _fraction("stacks", "composer", "attention_multiple", 0.3),
    _size("stacks", "fsdp2", "traffic_multiple", 0.8, 5.0),
    _fraction("stacks", "fsdp2", "attention_multiple", 0.3),
    _fraction("stacks", "deepspeed", "data_overlap_fraction", 0.0),
    _size("stacks", "deepspeed", "data_hop_multiple", 1.0, 20.0),
    _size("stacks", "nanotron", "traffic_multiple", 0.8, 12.0),
    _size("stacks", "nanotron", "host_layer_seconds", 0.0, 0.02),
    _size("stacks", "nanotron", "host_collective_seconds", 0.0, 0.002),
    _size("stacks", "nanotron", "host_rank_seconds", 0.0, 0.02),
    _size("stacks", "nanotron", "step_seconds", 0.0, 1.0),
    _fraction("stacks", "nanotron", "data_overlap_fraction", 0.0),
    _fraction("stacks", "nanotron", "gather_overlap_fraction", 0.0),
    _size("stacks", "nanotron", "exposed_sends", 0.0, 10.0),
    _fraction("stacks", "nanotron", "network_fraction", 0.02),
    _size("stacks", "nanotron", "data_hop_multiple", 1.0, 50.0),
    _size("stacks", "nanotron", "stall_seconds", 0.0, 3.0),
)


class Fit:
    """The fitted cases, and what they say of each set of values."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = cases
        self.groups = grouped(cases)
        self.measured = np.array([case.seconds for case in cases])
        counts = Counter(case.source for case in cases)
        self.weights = np.array([counts[case.source] ** -0.25 for case in cases])
        self._cache: dict[tuple[int, tuple[float, ...]], tuple[FloatArray, FloatArray]] = {}

    def left_alone(self) -> list[int]:
        """Return the parameters that none of the cases says anything of: of a stack or a generation that has none."""
        files = {name for group in self.groups for name in _files(group)}
        return [index for index, one in enumerate(PARAMETERS) if one.file not in files]

    def residuals(self, values: FloatArray) -> FloatArray:
        """Return the logarithms of estimated over measured, by the mode that is nearer to the measured."""
        estimated, stalls = self.both(values)
        plain, stalled = np.log(estimated / self.measured), np.log((estimated + stalls) / self.measured)
        nearer: FloatArray = np.where(np.abs(plain) <= np.abs(stalled), plain, stalled)
        return nearer

    def both(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return each case's estimated seconds, and how much longer its stack's slow mode takes."""
        estimated, stalls = np.full(len(self.cases), np.inf), np.full(len(self.cases), np.inf)
        for number, group in enumerate(self.groups):
            for best, found in zip((estimated, stalls), self._seconds(number, group, values), strict=True):
                np.minimum.at(best, group.owner, found)
        return estimated, stalls

    def _seconds(self, number: int, group: Group, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        base = load_efficiency(group.job.profile.name, group.hardware.gpu.id)
        mine = [i for i, one in enumerate(PARAMETERS) if one.file in _files(group)]
        key = (number, tuple(values[mine]))
        if key not in self._cache:
            efficiency = changed(base, {i: float(values[i]) for i in mine})
            self._cache[key] = (
                step_seconds(group.layouts, group.job, group.hardware, efficiency).total,
                stall_seconds(group.layouts, group.job, efficiency),
            )
        return self._cache[key]


def _files(group: Group) -> tuple[str, str]:
    """Return the data files of a group's efficiencies: its generation's and its stack's."""
    efficiency = load_efficiency(group.job.profile.name, group.hardware.gpu.id)
    return efficiency.gpu.name, efficiency.stack.name


def changed(base: Efficiency, values: Mapping[int, float]) -> Efficiency:
    """Return the efficiencies with some parameters' values in place."""
    of: dict[str, dict[str, Any]] = {"gpus": {}, "stacks": {}}
    for index, value in values.items():
        of[PARAMETERS[index].folder][PARAMETERS[index].key] = value
    return dataclasses.replace(
        base, gpu=dataclasses.replace(base.gpu, **of["gpus"]), stack=dataclasses.replace(base.stack, **of["stacks"])
    )


def start_values() -> FloatArray:
    """Return what the data files say now, inside the bounds."""
    values = [float(_stated(_path(one.folder, one.file), one.key)[1]) for one in PARAMETERS]
    return np.clip(values, [one.low for one in PARAMETERS], [one.high for one in PARAMETERS])


def fitted_values(fit: Fit, values: FloatArray) -> FloatArray:
    """Return the values of least weighted squares, by damped Gauss-Newton steps inside the bounds."""
    low, high = (np.array([getattr(one, end) for one in PARAMETERS]) for end in ("low", "high"))
    span, damping = high - low, 1e-2
    residual = fit.residuals(values)
    for _ in range(ITERATIONS):
        weight = fit.weights * np.sqrt(np.minimum(1.0, HUBER / np.maximum(np.abs(residual), 1e-12)))
        slopes = np.empty((residual.size, values.size))
        for index, one in enumerate(PARAMETERS):
            moved = values.copy()
            moved[index] += one.step if values[index] + one.step <= one.high else -one.step
            slopes[:, index] = (fit.residuals(moved) - residual) / (moved[index] - values[index]) * span[index]
        jacobian, weighted = slopes * weight[:, None], residual * weight
        while damping < 1e6:
            normal = jacobian.T @ jacobian
            free = np.ones(values.size, dtype=bool)
            gradient = jacobian.T @ weighted
            free &= ~((values <= low) & (gradient > 0)) & ~((values >= high) & (gradient < 0))
            inner = normal[np.ix_(free, free)] + damping * np.diag(np.diag(normal)[free] + 1e-6)
            move = np.zeros(values.size)
            move[free] = -np.linalg.solve(inner, gradient[free])
            trial = np.clip(values + move * span, low, high)
            found = fit.residuals(trial)
            if _loss(found, fit.weights) < _loss(residual, fit.weights):
                gain = _loss(residual, fit.weights) - _loss(found, fit.weights)
                values, residual, damping = trial, found, damping / 3
                break
            damping *= 4
        else:
            return values
        if gain < 1e-5 * _loss(residual, fit.weights):
            return values
    return values


def _loss(residual: FloatArray, weights: FloatArray) -> float:
    size = np.abs(residual)
    return float((weights**2 * np.where(size <= HUBER, size**2, HUBER * (2 * size - HUBER))).sum())


def write(values: FloatArray) -> None:
    """Write values into the data files, in place."""
    for one, value in zip(PARAMETERS, values, strict=True):
        _set(_path(one.folder, one.file), one.key, value)


def _set(path: Path, key: str, value: float) -> None:
    found = _stated(path, key)
    text = path.read_text(encoding="utf-8")
    written = f"{text[: found.start(1)]}{float(f'{value:.3g}')!r}{text[found.end(1) :]}"
    path.write_text(written, encoding="utf-8")


def _stated(path: Path, key: str) -> re.Match[str]:
    """Return where a file states a value: what is fitted to a stack's own runs is inherited from nobody."""
    found = list(re.finditer(rf"^{key} = (\S+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    if len(found) != 1:
        raise ValueError(f"{path}: {key} stands there {len(found)} times, not once.")
    return found[0]


def _path(folder: str, file: str) -> Path:
    planners = Path(str(resources.files("plimsoll.planners")))
    if folder == "gpus":
        return planners / "timing" / "gpus" / f"{file}.toml"
    return planners / "stacks" / file.replace("-", "_") / "timing.toml"


def main() -> None:
    """Fit, print, and write where asked to."""
    parser = argparse.ArgumentParser(description="Fit the time model to the fitted part of the published runs.")
    parser.add_argument("--write", action="store_true", help="write the values into their files of planners")
    arguments = parser.parse_args()
    fit = Fit([case for case in all_cases()[0] if not case.held_out])
    before = start_values()
    values = fitted_values(fit, before)
    print(f"{len(fit.cases)} cases, loss {_loss(fit.residuals(before), fit.weights):.3f}", end="")
    print(f" -> {_loss(fit.residuals(values), fit.weights):.3f}")
    for one, old, new in zip(PARAMETERS, before, values, strict=True):
        edge = "  (at its bound)" if new in (one.low, one.high) else ""
        print(f"{one.file:10} {one.key:30} {old:10.4g} -> {new:10.4g}{edge}")
    if arguments.write:
        write(values)


if __name__ == "__main__":
    main()
