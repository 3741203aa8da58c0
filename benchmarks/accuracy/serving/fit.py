"""The fit of the roofline's weights, and the same fit with one model after another left out.

    python -m benchmarks.accuracy.serving.fit

prints the tables of `planners/serving/engines/efficiencies.toml`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.accuracy.serving.latencies import LatencyCase, latency_cases
from planners.serving.pace import decode_terms, prefill_terms

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# Physical starting values: reading takes a little longer than at the peak rate, MoE kernels more; kernel launches
# cost some 35 us a layer, and 10 more where its inputs are quantized; a prompt runs at 1/1.8 of the peak alone; the
# all-reduces of others' prompts hide behind their computation for the most part. The fit is drawn to them where rows
# are few.
DECODE_PRIOR = {
    "dense_weights": 1.15, "expert_weights": 1.4, "compute_beyond_reading": 1.0, "cache": 1.0, "all_reduce": 1.5,
    "layers": 3.5e-5, "parallel_layers": 2e-5, "mixture_layers": 3e-5, "quantized_layers": 1e-5,
    "others_prefill_dense": 1.0, "others_prefill_mixture": 1.5, "others_prefill_all_reduce": 0.3,
    "request_layers": 3e-7, "steps": 8e-4,
}  # fmt: skip
PREFILL_PRIOR = {
    "requests": 0.03, "compute_dense": 1.8, "compute_mixture": 3.0, "queued_dense": 0.5, "queued_mixture": 0.8,
    "all_reduce": 3.0, "queued_all_reduce": 1.0, "layers": 1e-4, "decode_step": 1.0, "weights": 1.0,
}  # fmt: skip
# How strongly values are drawn to the prior, in rows: for all engines together, then for each. Engines differ in
# their overheads and in how they mix prompts into steps, less in how they read memory.
OVERHEADS = frozenset(
    {
        "others_prefill_dense", "others_prefill_mixture", "request_layers", "layers", "parallel_layers",
        "quantized_layers", "steps",
    }
)  # fmt: skip
QUEUES = frozenset({"queued_dense", "queued_mixture", "queued_all_reduce"})
TOGETHER_ROWS, OVERHEAD_ROWS = 30.0, 20.0
FIRST_TOKEN_ROWS, QUEUE_SHARE = 1.0, 0.1
# Residuals beyond these count by their size and not by its square.
TOKEN_OUTLIER, FIRST_TOKEN_OUTLIER = 0.15, 0.2
ROUNDS, SWEEPS, CONVERGED = 6, 4000, 1e-7
# A value is drawn no further down than to this part of the prior.
LEAST_OF_PRIOR = 0.05
BAND = (0.05, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Rows of terms with what was measured; `penalties` of all engines' fit and of each one's, in rows."""

    names: tuple[str, ...]
    terms: Floats
    measured: Floats
    engines: npt.NDArray[np.str_]
    families: npt.NDArray[np.str_]
    prior: Floats
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
        """Return the weights of least relative error: models alike, outliers by their size (Huber 1964)."""
        if not rows.any():
            return prior
        relative = self.terms[rows] / self.measured[rows][:, None] * prior
        counts = Counter(self.families[rows].tolist())
        each = np.array([1 / np.sqrt(counts[family]) for family in self.families[rows].tolist()])
        each /= np.sqrt((each**2).mean())
        scale, drawn = each.copy(), np.sqrt(penalty)
        solution = np.ones(len(prior))
        for _ in range(ROUNDS):
            solution = non_negative(
                np.vstack([relative * scale[:, None], np.diag(drawn)]), np.concatenate([scale, drawn])
            )
            residual = np.maximum(np.abs(relative @ solution - 1), 1e-3)
            scale = each * np.minimum(1, np.sqrt(self.outlier / residual))
        return solution * prior


def non_negative(matrix: Floats, target: Floats) -> Floats:
    """Return the least-squares solution without negative parts, by coordinate descent."""
    normal, right = matrix.T @ matrix, matrix.T @ target
    solution = np.zeros(len(right))
    for _ in range(SWEEPS):
        before = solution.copy()
        for index in range(len(solution)):
            step = (right[index] - normal[index] @ solution) / max(normal[index, index], 1e-18)
            solution[index] = max(0.0, solution[index] + step)
        if np.max(np.abs(solution - before)) < CONVERGED * np.max(np.abs(solution)):
            break
    return solution


def token_problem(cases: Sequence[LatencyCase]) -> Problem:
    """Return the rows of times between tokens."""
    names = tuple(DECODE_PRIOR)
    overhead = np.array([OVERHEAD_ROWS if name in OVERHEADS else TOGETHER_ROWS for name in names])
    return _problem(
        cases,
        names,
        _decode,
        np.array([case.token_seconds for case in cases]),
        prior=DECODE_PRIOR,
        together=np.full(len(names), TOGETHER_ROWS),
        each=overhead,
        outlier=TOKEN_OUTLIER,
    )


def first_token_problem(cases: Sequence[LatencyCase]) -> Problem:
    """Return the rows of times to the first token; the decode step's part is as the planner has it."""
    timed = [case for case in cases if case.first_token_seconds]
    names = tuple(PREFILL_PRIOR)
    penalty = np.array([FIRST_TOKEN_ROWS * (QUEUE_SHARE if name in QUEUES else 1.0) for name in names])
    measured = np.array([case.first_token_seconds or 0.0 for case in timed])
    return _problem(
        timed,
        names,
        _prefill,
        measured,
        prior=PREFILL_PRIOR,
        together=penalty,
        each=penalty,
        outlier=FIRST_TOKEN_OUTLIER,
    )


def _problem(
    cases: Sequence[LatencyCase],
    names: tuple[str, ...],
    terms_of: Callable[[LatencyCase], Mapping[str, float]],
    measured: Floats,
    *,
    prior: Mapping[str, float],
    together: Floats,
    each: Floats,
    outlier: float,
) -> Problem:
    terms = [terms_of(case) for case in cases]
    return Problem(
        names=names,
        terms=np.array([[row[name] for name in names] for row in terms]),
        measured=measured,
        engines=np.array([case.engine for case in cases]),
        families=np.array([case.family for case in cases]),
        prior=np.array([prior[name] for name in names]),
        together=together,
        each=each,
        outlier=outlier,
    )


def _decode(case: LatencyCase) -> Mapping[str, float]:
    return decode_terms(case.work, case.batch, case.traffic)


def _prefill(case: LatencyCase) -> Mapping[str, float]:
    terms = prefill_terms(case.work, case.batch, case.traffic)
    return {**terms, "all_reduce": case.work.all_reduce_seconds(case.traffic.input_tokens)}


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
    for engine in ("vllm", "sglang", "trtllm"):
        for part, band_name, problem, weights, held_out in parts:
            print(f"[{engine}.{part}]")
            for name, weight in zip(problem.names, weights[engine], strict=True):
                print(f"{name} = {weight:.4g}")
            low, high = band(problem, held_out, engine)
            print(f"\n[{engine}.{band_name}]\nlow = {low:.2f}\nhigh = {high:.2f}\n")


if __name__ == "__main__":
    main()
