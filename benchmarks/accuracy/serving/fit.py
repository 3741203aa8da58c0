"""The fit of what engines add to their operators, and the same fit with one model after another left out.

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
from plimsoll.planners.calibration.ridge import ridge
from plimsoll.planners.serving.times.efficiency import timed_engines
from plimsoll.planners.serving.times.pace import pace_of

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Parts = Mapping[str, Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A fitted term: the value that it is drawn to, and how far from it, as a natural logarithm, it may well lie."""

    name: str
    prior: float
    spread: float


# A kernel's end and the next one's start, a little after it in a CUDA graph; at an exchange ranks that are a few
# microseconds apart; a step's launch and its sampling; handing one token to one client. Other requests' prompts hold a
# token up while they are computed, wholly where all steps are mixed, half where those that came together go first.
STEP_TERMS = (
    Term(name="kernel_seconds", prior=1e-6, spread=0.5),
    Term(name="exchange_seconds", prior=3e-6, spread=0.5),
    Term(name="host_seconds", prior=4e-4, spread=0.7),
    Term(name="request_seconds", prior=2e-5, spread=0.7),
    Term(name="others_prompts", prior=0.85, spread=0.3),
)
FIRST_TOKEN_TERMS = (
    Term(name="host_seconds", prior=0.03, spread=1.0),
    Term(name="prompt", prior=1.2, spread=0.3),
    Term(name="queued_prompts", prior=0.2, spread=0.7),
    Term(name="awaited_steps", prior=1.5, spread=0.5),
)
# One standard deviation of the logarithm of a measured value about its estimate; residuals beyond the other count by
# their size and not by its square (Huber 1964).
TOKEN_ERROR, TOKEN_OUTLIER = 0.12, 0.15
FIRST_TOKEN_ERROR, FIRST_TOKEN_OUTLIER = 0.25, 0.2
ROUNDS = 4
# An engine's terms lie this much nearer to those of all engines together than these may lie to the priors.
ENGINE_SPREAD = 0.3
# A group of n rows weighs as n to this power: between a row like any other and a group like any other.
GROUP_POWER = 0.5
# No term is drawn further from its prior than by this factor's logarithm, in spreads.
FURTHEST = 8.0
BAND = (0.05, 0.95)
# One deployment in so many is kept from every choice of the form and its priors, by the digest of its name.
KEPT_BACK = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Rows with the parts of an estimate and what was measured; `estimate` makes seconds of parts and terms.

    `groups` weigh as the root of their rows, `families` are left out together.
    """

    terms: tuple[Term, ...]
    estimate: Callable[[Parts, Sequence[float]], Floats]
    parts: Parts
    measured: Floats
    engines: npt.NDArray[np.str_]
    families: npt.NDArray[np.str_]
    groups: npt.NDArray[np.str_]
    error: float
    outlier: float

    def held_out(self) -> Floats:
        """Return every row's estimate by a fit that never saw its model."""
        estimates = np.zeros(len(self.measured))
        for family in np.unique(self.families):
            rows = self.families == family
            values = self.fit(~rows)
            estimates[rows] = self.estimates(values)[rows]
        return estimates

    def estimates(self, values: Mapping[str, Floats]) -> Floats:
        """Return every row's estimate by its engine's terms."""
        estimates = np.zeros(len(self.measured))
        for engine in np.unique(self.engines):
            rows = self.engines == engine
            estimates[rows] = self.estimate(self._parts(rows), values[str(engine)])
        return estimates

    def fit(self, rows: Bools) -> dict[str, Floats]:
        """Return each engine's terms, drawn to those of all engines together."""
        priors = np.array([term.prior for term in self.terms])
        spreads = np.array([term.spread for term in self.terms])
        pooled = self._solve(rows, priors, spreads)
        return {
            str(engine): self._solve(rows & (self.engines == engine), pooled, ENGINE_SPREAD * spreads)
            for engine in np.unique(self.engines)
        }

    def _parts(self, rows: Bools) -> Parts:
        return {name: values[rows] for name, values in self.parts.items()}

    def _solve(self, rows: Bools, priors: Floats, spreads: Floats) -> Floats:
        """Return the terms of least squared logarithms, outliers by their size, large groups held down."""
        if not rows.any():
            return priors
        parts, measured = self._parts(rows), self.measured[rows]
        counts = Counter(self.groups[rows].tolist())
        weights = np.array([counts[group] ** ((GROUP_POWER - 1) / 2) for group in self.groups[rows].tolist()])
        usual = self.error / (weights / np.sqrt((weights**2).mean()))

        def residuals(offsets: Floats) -> Floats:
            return np.asarray(1 - self.estimate(parts, priors * np.exp(offsets * spreads)) / measured)

        errors = usual
        for _ in range(ROUNDS):
            found = ridge(residuals, errors=errors, spread=1.0, ceiling=np.full(len(priors), FURTHEST))
            errors = usual * np.sqrt(np.maximum(1.0, np.abs(found.residual) / self.outlier))
        return np.asarray(priors * np.exp(found.offsets * spreads))


def token_problem(cases: Sequence[LatencyCase]) -> Problem:
    """Return the rows of times between tokens."""
    measured = np.array([case.token_seconds for case in cases])
    return _problem(cases, STEP_TERMS, step_estimate, step_parts, measured, (TOKEN_ERROR, TOKEN_OUTLIER))


def first_token_problem(cases: Sequence[LatencyCase]) -> Problem:
    """Return the rows of times to the first token; the decode step is as the planner has it."""
    timed = [case for case in cases if case.first_token_seconds]
    measured = np.array([case.first_token_seconds or 0.0 for case in timed])
    limits = FIRST_TOKEN_ERROR, FIRST_TOKEN_OUTLIER
    return _problem(timed, FIRST_TOKEN_TERMS, first_token_estimate, first_token_parts, measured, limits)


def _problem(
    cases: Sequence[LatencyCase],
    terms: tuple[Term, ...],
    estimate: Callable[[Parts, Sequence[float]], Floats],
    parts_of: Callable[[LatencyCase], Mapping[str, float]],
    measured: Floats,
    limits: tuple[float, float],
) -> Problem:
    rows = [parts_of(case) for case in cases]
    return Problem(
        terms=terms,
        estimate=estimate,
        parts={name: np.array([row[name] for row in rows]) for name in rows[0]},
        measured=measured,
        engines=np.array([case.engine for case in cases]),
        families=np.array([case.family for case in cases]),
        groups=np.array([f"{case.family} {case.gpu}" for case in cases]),
        error=limits[0],
        outlier=limits[1],
    )


def step_parts(case: LatencyCase) -> Mapping[str, float]:
    """Return what the terms of a step multiply; no row has pipeline stages."""
    pace = pace_of(case.work, case.traffic)
    work, requests = case.work, pace.rank_requests(case.batch)
    return {
        "operators": work.linear_seconds(requests) + pace.attention.at(requests) + work.head.at(requests),
        "kernels": float(work.kernels),
        "exchanges": work.exchanges,
        "requests": requests,
        "overlaps": float(work.overlaps_host),
        "others": pace.others_seconds(case.batch) / work.efficiency.step.others_prompts,
    }


def step_estimate(parts: Parts, terms: Sequence[float]) -> Floats:
    """Return the times between tokens as `planners/serving/times/pace.py` has them."""
    kernel, exchange, host, request, others = terms
    card = parts["operators"] + kernel * parts["kernels"] + exchange * parts["exchanges"]
    prepared = host + request * parts["requests"]
    step = np.where(parts["overlaps"] > 0, np.maximum(card, prepared), card + prepared)
    return np.asarray(step + others * parts["others"])


def first_token_parts(case: LatencyCase) -> Mapping[str, float]:
    """Return what the terms of a first token multiply."""
    pace = pace_of(case.work, case.traffic)
    return {
        "prompt": case.work.prompt_alone_seconds(case.traffic.prefill_tokens),
        "queued": (pace.rank_requests(case.batch) - 1) * pace.prompt_pass_seconds,
        "step": pace.step_seconds(case.batch),
    }


def first_token_estimate(parts: Parts, terms: Sequence[float]) -> Floats:
    """Return the times to the first token as `planners/serving/times/pace.py` has them."""
    host, prompt, queued, awaited = terms
    return np.asarray(host + prompt * parts["prompt"] + queued * parts["queued"] + awaited * parts["step"])


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
        ("step", "token_band", tokens, tokens.fit(np.ones(len(tokens.measured), bool)), tokens.held_out()),
        ("first_token", "first_token_band", firsts, firsts.fit(np.ones(len(firsts.measured), bool)), firsts.held_out()),
    )
    for engine in timed_engines():
        print(f"# {engine}")
        for part, band_name, problem, values, held_out in parts:
            print(f"[{part}]")
            for term, value in zip(problem.terms, values[engine], strict=True):
                print(f"{term.name} = {value:.3g}")
            low, high = band(problem, held_out, engine)
            print(f"\n[{band_name}]\nlow = {low:.2f}\nhigh = {high:.2f}\n")


if __name__ == "__main__":
    main()
