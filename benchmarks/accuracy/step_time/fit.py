"""Fit the efficiencies to the fitted part of the published runs, and write them into their data files.

    python -m benchmarks.accuracy.step_time.fit [--write]

Least squares on the logarithm of estimated over measured seconds, by
Levenberg-Marquardt, with Huber's weights so that runs that went wrong (a bad
node, a retry) do not pull. Each source weighs as the square root of its cases.
A stack may have a slow mode (`planners/timing/stalls.py`): each run is fitted by the mode that is nearer to it, and
its upper bound holds the slow one. Parameters stay inside physical bounds, and each is held to what is known of it
without whole steps, as a site's calibration is to what ships: a card's to its measured operators, a stack's to the
textbook's. So what few runs tell of does not follow their accidents. `low` and `high` of a stack are set by hand, from
what fits without a source make of it (`left_out.py` beside this file).
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
from plimsoll.planners.catalogue.catalogue import catalogue
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.operators.attention import PROMPT, prompt_attention
from plimsoll.planners.operators.tables import measured_engines
from plimsoll.planners.stacks.profile import textbook
from plimsoll.planners.timing.efficiency import Efficiency, load_efficiency
from plimsoll.planners.timing.products import EIGHT_BITS, SIXTEEN_BITS, product_shapes
from plimsoll.planners.timing.stalls import stall_seconds
from plimsoll.planners.timing.step import step_seconds

# Beyond this error (in logarithms, about 10 %) a case pulls with a constant force only (Huber 1964): the mean error is
# to be least, and one published run in ten stalled.
HUBER = 0.1
ITERATIONS = 25
# What a figure pulls with that lies one spread from its prior: as a run does that is missed by 5 %.
PRIOR_ERROR = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One figure of one data file, with its physical bounds, and what it is held to: one `spread` costs PRIOR_ERROR."""

    folder: str
    file: str
    key: str
    low: float
    high: float
    step: float
    prior: float
    spread: float


def _card(file: str, key: str, low: float, high: float, prior: float) -> Parameter:
    """Return a fraction of a card's, held to what its operators were measured at."""
    return Parameter(folder="gpus", file=file, key=key, low=low, high=high, step=0.01, prior=prior, spread=0.1)


def _fraction(file: str, key: str, low: float, high: float = 1.0) -> Parameter:
    return _of_stack(file, key, low, high, step=0.01, spread=(high - low) / 4)


def _size(file: str, key: str, low: float, high: float) -> Parameter:
    return _of_stack(file, key, low, high, step=(high - low) / 200, spread=(high - low) / 4)


def _latency(file: str, key: str, low: float, high: float) -> Parameter:
    """Return a multiple of a latency, of which the textbook knows the least alone."""
    return _of_stack(file, key, low, high, step=(high - low) / 200, spread=high - low)


def _of_stack(file: str, key: str, low: float, high: float, *, step: float, spread: float) -> Parameter:
    """Return a figure of a stack's, held to the textbook's."""
    prior = float(getattr(load_efficiency(textbook().name).stack, key))
    return Parameter(folder="stacks", file=file, key=key, low=low, high=high, step=step, prior=prior, spread=spread)


def _long_product(card: str, number_format: str) -> float:
    """Return what of the peak a long measured product reaches."""
    gpu = catalogue().gpu(card)
    rate = gpu.peak_flops_per_second["fp8" if number_format == EIGHT_BITS else "bf16"]
    return 1.0 / (product_shapes(ByIdentity(gpu), number_format).long_seconds_per_flop * rate)


def _long_attention(card: str) -> float:
    """Return what of the peak causal attention of 8,192 tokens and 32 heads reaches forward in three engines."""
    engines = measured_engines(PROMPT)
    gpu, tokens, heads, size = catalogue().gpu(card), 8192, 32, 128
    flops = 2.0 * heads * tokens**2 * size
    seconds = [float(prompt_attention(gpu, engine, size).seconds(1, tokens, heads, 8)) for engine in engines]
    return flops / float(np.median(seconds)) / gpu.peak_flops_per_second["bf16"]


A100, H100, B200, GB300 = "a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm-180gb", "gb300-nvl-279gb"
# NCCL over a node's network cards: what cards of no known generation are given.
NETWORK = load_efficiency(textbook().name).gpu.network_fraction
PARAMETERS: tuple[Parameter, ...] = (
    _card("ampere", "matmul_peak_fraction", 0.5, 0.90, _long_product(A100, SIXTEEN_BITS)),
    _card("ampere", "attention_peak_fraction", 0.3, 0.75, _long_attention(A100)),
    _card("ampere", "network_fraction", 0.2, 0.95, NETWORK),
    _card("hopper", "matmul_peak_fraction", 0.4, 0.82, _long_product(H100, SIXTEEN_BITS)),
    _card("hopper", "low_precision_peak_fraction", 0.3, 0.90, _long_product(H100, EIGHT_BITS)),
    _card("hopper", "attention_peak_fraction", 0.3, 0.75, _long_attention(H100)),
    _card("blackwell", "matmul_peak_fraction", 0.3, 0.85, _long_product(B200, SIXTEEN_BITS)),
    _card("blackwell", "low_precision_peak_fraction", 0.3, 0.85, _long_product(B200, EIGHT_BITS)),
    _card("blackwell", "attention_peak_fraction", 0.3, 0.75, _long_attention(B200)),
    _card("blackwell-ultra", "low_precision_peak_fraction", 0.3, 0.85, _long_product(GB300, EIGHT_BITS)),
    _size("megatron", "traffic_multiple", 0.8, 5.0),
    _fraction("megatron", "data_overlap_fraction", 0.0),
    _fraction("megatron", "tensor_overlap_fraction", 0.0),
    _fraction("megatron", "expert_overlap_fraction", 0.0),
    _size("megatron", "host_expert_layer_seconds", 0.0, 0.02),
    _size("megatron", "expert_weight_multiple", 1.0, 20.0),
    _size("composer", "traffic_multiple", 0.8, 5.0),
    _fraction("composer", "data_overlap_fraction", 0.0),
    _fraction("composer", "attention_multiple", 0.3),
    _size("fsdp2", "traffic_multiple", 0.8, 5.0),
    _fraction("fsdp2", "attention_multiple", 0.3),
    _latency("deepspeed", "data_hop_multiple", 1.0, 20.0),
    _size("nanotron", "traffic_multiple", 0.8, 12.0),
    _size("nanotron", "host_layer_seconds", 0.0, 0.02),
    _size("nanotron", "host_collective_seconds", 0.0, 0.002),
    _size("nanotron", "host_rank_seconds", 0.0, 0.02),
    _size("nanotron", "step_seconds", 0.0, 1.0),
    _fraction("nanotron", "data_overlap_fraction", 0.0),
    _fraction("nanotron", "gather_overlap_fraction", 0.0),
    _size("nanotron", "exposed_sends", 0.0, 10.0),
    _fraction("nanotron", "network_fraction", 0.02),
    _latency("nanotron", "data_hop_multiple", 1.0, 50.0),
    _size("nanotron", "stall_seconds", 0.0, 3.0),
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

    def loss(self, values: FloatArray, residuals: FloatArray) -> float:
        """Return Huber's weighted sum of squares, and the squares of how far the values lie from their priors."""
        size = np.abs(residuals)
        of_cases = np.where(size <= HUBER, size**2, HUBER * (2 * size - HUBER))
        return float((self.weights**2 * of_cases).sum() + (strayed(values) ** 2).sum())

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


def strayed(values: FloatArray) -> FloatArray:
    """Return how far values lie from their priors, as logarithms of a case's error."""
    away = [(value - one.prior) / one.spread for value, one in zip(values, PARAMETERS, strict=True)]
    return PRIOR_ERROR * np.array(away)


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
    """Return the values of least loss, by damped Gauss-Newton steps inside the bounds."""
    low, high = (np.array([getattr(one, end) for one in PARAMETERS]) for end in ("low", "high"))
    span, damping = high - low, 1e-2
    pulls = np.diag(PRIOR_ERROR * span / np.array([one.spread for one in PARAMETERS]))
    residual = fit.residuals(values)
    loss = fit.loss(values, residual)
    for _ in range(ITERATIONS):
        weight = fit.weights * np.sqrt(np.minimum(1.0, HUBER / np.maximum(np.abs(residual), 1e-12)))
        jacobian = np.concatenate([_slopes(fit, values, residual) * span * weight[:, None], pulls])
        gradient = jacobian.T @ np.concatenate([residual * weight, strayed(values)])
        free = ~((values <= low) & (gradient > 0)) & ~((values >= high) & (gradient < 0))
        normal = (jacobian.T @ jacobian)[np.ix_(free, free)]
        before = loss
        while damping < 1e6 and loss == before:
            move = np.zeros(values.size)
            move[free] = -np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-6), gradient[free])
            trial = np.clip(values + move * span, low, high)
            found = fit.residuals(trial)
            if fit.loss(trial, found) < loss:
                values, residual, loss, damping = trial, found, fit.loss(trial, found), damping / 3
            else:
                damping *= 4
        if before - loss < 1e-5 * loss:
            return values
    return values


def _slopes(fit: Fit, values: FloatArray, residual: FloatArray) -> FloatArray:
    """Return what each residual changes by with each value."""
    slopes = np.empty((residual.size, values.size))
    for index, one in enumerate(PARAMETERS):
        moved = values.copy()
        moved[index] += one.step if values[index] + one.step <= one.high else -one.step
        slopes[:, index] = (fit.residuals(moved) - residual) / (moved[index] - values[index])
    return slopes


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
    losses = [fit.loss(each, fit.residuals(each)) for each in (before, values)]
    print(f"{len(fit.cases)} cases, loss {losses[0]:.3f} -> {losses[1]:.3f}")
    for one, old, new in zip(PARAMETERS, before, values, strict=True):
        edge = "  (at its bound)" if new in (one.low, one.high) else ""
        print(f"{one.file:10} {one.key:30} {old:10.4g} -> {new:10.4g}{edge}")
    if arguments.write:
        write(values)


if __name__ == "__main__":
    main()
