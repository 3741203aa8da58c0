"""The fit of the roofline's weights, and the same fit with one model after another left out.

    python -m benchmarks.accuracy.serving.fit

prints the tables of each engine's `planners/serving/engines/<engine>/efficiency.toml`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.accuracy.serving.latencies import LatencyCase, latency_cases
from plimsoll.planners.serving.times.efficiency import AT_PEAK, timed_engines
from plimsoll.planners.serving.times.pace import decode_terms, prefill_terms

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# Physical starting values: reading takes a little longer than at the peak rate, MoE kernels more; a kernel takes some
# 4 us from start to end, and a little less on Blackwell; quantizing a product's inputs 1 us; handing one token to one
# client 20 us. A prompt runs at 1/1.8 of the peak alone; the all-reduces of others' prompts hide behind their
# computation in part. The fit is drawn to them where rows are few.
DECODE_PRIOR = {
    "dense_weights": 1.15, "expert_weights": 1.4, "expert_tiles": 1.15, "compute_beyond_reading": 1.0, "cache": 1.0,
    "all_reduce": 1.5, "operations": 4e-6, "blackwell_operations": 3e-6, "parallel_layers": 2e-5,
    "quantized_matmuls": 1e-6, "others_prefill_dense": 1.0, "others_prefill_mixture": 1.5,
    "others_prefill_all_reduce": 0.6, "requests": 2e-5, "steps": 8e-4,
}  # fmt: skip
PREFILL_PRIOR = {
    "requests": 0.02, "compute_dense": 1.8, "compute_mixture": 3.0, "queued_dense": 0.15, "queued_mixture": 0.15,
    "all_reduce": 2.0, "queued_all_reduce": 0.15, "operations": 8e-6, "decode_step": 1.5, "weights": 1.0,
}  # fmt: skip
# How strongly values are drawn to the prior, in rows: for all engines together, then for each.
TOKEN_ROWS = (2.0, 10.0)
FIRST_TOKEN_ROWS = (0.2, 1.0)
# Residuals beyond these count by their size and not by its square.
TOKEN_OUTLIER, FIRST_TOKEN_OUTLIER = 0.15, 0.2
ROUNDS, SWEEPS, CONVERGED = 6, 4000, 1e-7
# A group of n rows weighs as n to this power: between a row like any other and a group like any other.
GROUP_POWER = 0.5
# A value is drawn no further down than to this part of the prior.
LEAST_OF_PRIOR = 0.05
BAND = (0.05, 0.95)
# One deployment in so many is kept from every choice of the form and its priors, by the digest of its name.
KEPT_BACK = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Rows of terms with what was measured; how strongly each value is drawn to its prior, in rows.

    `groups` weigh as the root of their rows, `families` are left out together. No value falls below its `least`.
    """

    names: tuple[str, ...]
    terms: Floats
    measured: Floats
    engines: npt.NDArray[np.str_]
    families: npt.NDArray[np.str_]
    groups: npt.NDArray[np.str_]
    prior: Floats
    least: Floats
    together: Floats
    each: Floats
    outlier: float

    def held_out(self) -> Floats:
        """Return every row's estimate by a fit that never saw its model."""
        estimates = np.zeros(len(self.measured))
        for family in np.unique(self.families):
            rows = self.families == family
            weights = self.fit(~rows)
            estimates[rows] = self.estimates(weights)[rows]
        return estimates

    def estimates(self, weights: Mapping[str, Floats]) -> Floats:
        """Return every row's estimate by its engine's weights."""
        chosen = np.array([weights[engine] for engine in self.engines])
        return np.asarray((self.terms * chosen).sum(axis=1))

    def fit(self, rows: Bools) -> dict[str, Floats]:
        """Return each engine's weights, drawn to those of all engines together."""
        pooled = np.maximum(self._solve(rows, self.prior, self.together), LEAST_OF_PRIOR * self.prior)
        return {
            str(engine): self._solve(rows & (self.engines == engine), pooled, self.each)
            for engine in np.unique(self.engines)
        }

    def _solve(self, rows: Bools, prior: Floats, penalty: Floats) -> Floats:
        """Return the weights of least relative error: large groups held down, outliers by their size (Huber 1964)."""
        if not rows.any():
            return prior
        relative = self.terms[rows] / self.measured[rows][:, None] * prior
        counts = Counter(self.groups[rows].tolist())
        each = np.array([counts[group] ** ((GROUP_POWER - 1) / 2) for group in self.groups[rows].tolist()])
        each /= np.sqrt((each**2).mean())
        scale, drawn = each.copy(), np.sqrt(penalty)
        solution = np.ones(len(prior))
        for _ in range(ROUNDS):
            solution = bounded(
                np.vstack([relative * scale[:, None], np.diag(drawn)]),
                np.concatenate([scale, drawn]),
                least=self.least / prior,
            )
            residual = np.maximum(np.abs(relative @ solution - 1), 1e-3)
            scale = each * np.minimum(1, np.sqrt(self.outlier / residual))
        return solution * prior


def bounded(matrix: Floats, target: Floats, *, least: Floats) -> Floats:
    """Return the least-squares solution of which no part is below its `least`, by coordinate descent."""
    normal, right = matrix.T @ matrix, matrix.T @ target
    solution = least.copy()
    for _ in range(SWEEPS):
        before = solution.copy()
        for index in range(len(solution)):
            step = (right[index] - normal[index] @ solution) / max(normal[index, index], 1e-18)
            solution[index] = max(least[index], solution[index] + step)
        if np.max(np.abs(solution - before)) < CONVERGED * np.max(np.abs(solution)):
            break
    return solution


def token_problem(cases: Sequence[LatencyCase]) -> Problem:
    """Return the rows of times between tokens."""
    measured = np.array([case.token_seconds for case in cases])
    return _problem(cases, _decode, measured, prior=DECODE_PRIOR, rows=TOKEN_ROWS, outlier=TOKEN_OUTLIER)


def first_token_problem(cases: Sequence[LatencyCase]) -> Problem:
    """Return the rows of times to the first token; the decode step's part is as the planner has it."""
    timed = [case for case in cases if case.first_token_seconds]
    measured = np.array([case.first_token_seconds or 0.0 for case in timed])
    return _problem(timed, _prefill, measured, prior=PREFILL_PRIOR, rows=FIRST_TOKEN_ROWS, outlier=FIRST_TOKEN_OUTLIER)


def _problem(
    cases: Sequence[LatencyCase],
    terms_of: Callable[[LatencyCase], Mapping[str, float]],
    measured: Floats,
    *,
    prior: Mapping[str, float],
    rows: tuple[float, float],
    outlier: float,
) -> Problem:
    names = tuple(prior)
    terms = [terms_of(case) for case in cases]
    return Problem(
        names=names,
        terms=np.array([[row[name] for name in names] for row in terms]),
        measured=measured,
        engines=np.array([case.engine for case in cases]),
        families=np.array([case.family for case in cases]),
        groups=np.array([f"{case.family} {case.gpu}" for case in cases]),
        prior=np.array([prior[name] for name in names]),
        least=np.array([1.0 if name in AT_PEAK else 0.0 for name in names]),
        together=np.full(len(names), rows[0]),
        each=np.full(len(names), rows[1]),
        outlier=outlier,
    )


def _decode(case: LatencyCase) -> Mapping[str, float]:
    return decode_terms(case.work, case.batch, case.traffic)


def _prefill(case: LatencyCase) -> Mapping[str, float]:
    terms = prefill_terms(case.work, case.batch, case.traffic)
    return {**terms, "all_reduce": case.work.all_reduce_seconds(case.traffic.input_tokens)}


def is_kept_back(case: LatencyCase) -> bool:
    """Return whether a case is of the deployments that no choice of the form was looked at on."""
    return hashlib.sha256(case.deployment.encode()).digest()[0] % KEPT_BACK == 0


def band(problem: Problem, held_out: Floats, engine: str) -> tuple[float, float]:
    """Return between which multiples of the estimate nine of ten measured values lie, rounded outwards."""
    ratios = (problem.measured / held_out)[problem.engines == engine]
    low, high = np.quantile(ratios, BAND)
    return float(np.floor(low * 100) / 100), float(np.ceil(high * 100) / 100)


def main() -> None:
    """Print the fitted tables."""
    cases, _ = latency_cases()
    tokens = token_problem(cases)
    firsts = first_token_problem(cases)
    parts = (
        ("decode", "token_band", tokens, tokens.fit(np.ones(len(tokens.measured), bool)), tokens.held_out()),
        ("prefill", "first_token_band", firsts, firsts.fit(np.ones(len(firsts.measured), bool)), firsts.held_out()),
    )
    for engine in timed_engines():
        print(f"# {engine}")
        for part, band_name, problem, weights, held_out in parts:
            print(f"[{part}]")
            for name, weight in zip(problem.names, weights[engine], strict=True):
                print(f"{name} = {weight:.4g}")
            low, high = band(problem, held_out, engine)
            print(f"\n[{band_name}]\nlow = {low:.2f}\nhigh = {high:.2f}\n")


if __name__ == "__main__":
    main()
