"""What a card's runs are estimated as without its own measured operators and without its runs in the fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from unittest import mock

import numpy as np

from benchmarks.accuracy.serving.fit import Floats, Problem, band, first_token_problem, token_problem
from benchmarks.accuracy.serving.latencies import GPUS, LatencyCase, latency_cases
from plimsoll.planners.operators import tables
from plimsoll.planners.serving.times import attention_seconds, pace, rank_exchanges, rank_operators
from plimsoll.planners.serving.times.efficiency import CARD_SPREAD, Band

# Cards of one chip, whose tables would tell of one another.
SAME_CHIP = {"b200-sxm-180gb": ("gb200-nvl-186gb",), "b300-sxm-270gb": ("gb300-nvl-279gb",)}
KEPT = (
    rank_operators.dense_operators,
    rank_operators.head_seconds,
    rank_operators.expert_operators,
    rank_operators.within_blocks_seconds,
    rank_exchanges.exchanges,
    attention_seconds.token_seconds,
    attention_seconds.prompt_seconds,
    attention_seconds.attention_evidence,
    pace._pace,
    tables._found,
)


def cards_left_out_lines(cases: Sequence[LatencyCase]) -> Iterator[str]:
    """Yield each card's error with its operators and without, its runs in no fit, and the part within the wide band."""
    yield f"{'what':12} {'card':10} {'rows':>5} {'own operators':>18} {'of another card':>18} {'within band':>12}"
    for name, make in (("token", token_problem), ("first token", first_token_problem)):
        within: list[Floats] = []
        for card in sorted({case.gpu for case in cases}):
            own, _ = _estimates(make, cases, card)
            without = _without(GPUS[card])
            estimates, problem = _estimates(make, without, card)
            inside = _inside(make(cases), problem, estimates, card)
            within.append(inside)
            errors = f"{_errors(own, make(cases), card)} {_errors(estimates, problem, card)}"
            yield f"{name:12} {card:10} {len(estimates):5} {errors} {inside.mean():12.0%}"
        yield f"{name:12} {'all':10} {sum(map(len, within)):5} {'':18} {'':18} {np.concatenate(within).mean():12.0%}"


def _without(card: str) -> tuple[LatencyCase, ...]:
    """Return all cases with the tables of a card, and of others with its chip, out of sight."""
    others = tuple(each for each in tables.measured_cards() if each not in (card, *SAME_CHIP.get(card, ())))
    with mock.patch.object(tables, "measured_cards", return_value=others):
        _forget()
        cases, _ = latency_cases()
    _forget()
    return cases


def _forget() -> None:
    for kept in KEPT:
        kept.cache_clear()


def _estimates(
    make: Callable[[Sequence[LatencyCase]], Problem], cases: Sequence[LatencyCase], card: str
) -> tuple[Floats, Problem]:
    """Return the estimates of a card's rows by a fit to the others'."""
    problem = make(cases)
    rows = _rows(problem, card)
    return problem.estimates(problem.fit(~rows))[rows], problem


def _rows(problem: Problem, card: str) -> np.typing.NDArray[np.bool_]:
    return np.array([group.endswith(f" {card}") for group in problem.groups.tolist()])


def _inside(all_cards: Problem, problem: Problem, estimates: Floats, card: str) -> Floats:
    """Return which measured values lie within their engine's band, made as wide as it is without a card's tables."""
    rows, held_out = _rows(problem, card), all_cards.held_out()
    bands = {}
    for engine in np.unique(all_cards.engines):
        low, high = band(all_cards, held_out, engine)
        bands[str(engine)] = Band(low=low, high=high).widened(CARD_SPREAD)
    ratios = problem.measured[rows] / estimates
    found = [
        bands[engine].low <= ratio <= bands[engine].high
        for engine, ratio in zip(problem.engines[rows].tolist(), ratios.tolist(), strict=True)
    ]
    return np.array(found, dtype=np.float64)


def _errors(estimates: Floats, problem: Problem, card: str) -> str:
    sizes = np.abs(estimates / problem.measured[_rows(problem, card)] - 1)
    return f"{sizes.mean():8.1%} ({np.median(sizes):6.1%})"
