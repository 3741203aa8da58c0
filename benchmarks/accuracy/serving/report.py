"""The serving planner against public start-up logs and latencies, as tables.

Latencies are shown twice: with the planner's own terms, and with terms fitted
without the row's model; and once more for deployments kept back from all choices,
with terms fitted without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.accuracy.document import Section
from benchmarks.accuracy.serving.calibrated import calibrated_lines
from benchmarks.accuracy.serving.cards_left_out import cards_left_out_lines
from benchmarks.accuracy.serving.closed_loops import closed_loop_lines, closed_loops
from benchmarks.accuracy.serving.fit import (
    Floats,
    Problem,
    band,
    first_token_problem,
    is_kept_back,
    token_problem,
)
from benchmarks.accuracy.serving.floods import flood_lines, floods
from benchmarks.accuracy.serving.full_load import full_load_lines, full_loads
from benchmarks.accuracy.serving.latencies import LatencyCase, drafting_cases, latency_cases
from benchmarks.accuracy.serving.layouts import layout_lines, within_bands
from benchmarks.accuracy.serving.ranking import ranking_lines
from benchmarks.accuracy.serving.startup_logs import log_cases, log_lines
from plimsoll.planners.serving.times.batching import SteadyState, closed_loop
from plimsoll.planners.serving.times.pace import pace_of

# Requests of one rank: alone or nearly so, and by factors of four.
LOADS = ((1, 4), (5, 16), (17, 64), (65, 256), (257, 100_000))
ACCEPTANCES = (0.4, 0.5, 0.6, 0.7, 0.8)


def serving_sections() -> Iterator[Section]:
    """Ask the planner for every case and yield the tables."""
    lines = tuple(log_lines(log_cases()))
    yield Section(name="serving-memory", title="Serving memory and cache, planned over logged", lines=lines)
    cases, left_out = latency_cases()
    timed = [case for case in cases if case.first_token_seconds]
    tokens = tuple(_table(token_problem(cases), np.array([token_seconds(case) for case in cases])))
    yield Section(
        name="serving-token", title="Serving, time per output token, mean (median) relative error", lines=tokens
    )
    first = tuple(_table(first_token_problem(timed), np.array([first_token_seconds(case) for case in timed])))
    yield Section(
        name="serving-first-token", title="Serving, time to first token, mean (median) relative error", lines=first
    )
    loads = tuple(_by_load(cases))
    yield Section(
        name="serving-loads",
        title="Serving, by requests of one rank: mean (median) relative error, and the part within the band",
        lines=loads,
    )
    yield Section(
        name="serving-layouts",
        title="Serving, by layout: mean (median) relative error, and the part within the band",
        lines=tuple(layout_lines(cases)),
    )
    yield Section(
        name="serving-kept-back",
        title="Serving, deployments kept back: mean (median) relative error, and the part of them within the band",
        lines=tuple(_kept_back(cases)),
    )
    yield Section(
        name="serving-sources",
        title="Serving, each of the two campaigns estimated by a fit to the other: mean (median) relative error",
        lines=tuple(_sources(cases)),
    )
    yield Section(
        name="serving-ranking",
        title="Serving, deployments of one model under one load: which is faster per token",
        lines=tuple(ranking_lines(cases, token_seconds)),
    )
    yield Section(
        name="serving-cards",
        title="Serving, a card's runs estimated by a fit to others: mean (median) relative error",
        lines=tuple(cards_left_out_lines(cases)),
    )
    yield Section(
        name="serving-full-load",
        title="Serving, output tokens per second at full load, TensorRT-LLM 0.17: mean (median) relative error",
        lines=tuple(full_load_lines(full_loads())),
    )
    yield Section(
        name="serving-closed-loops",
        title="Serving, closed loops simulated request by request, beside the measured means",
        lines=tuple(closed_loop_lines(tuple(closed_loops(cases)))),
    )
    yield Section(
        name="serving-floods",
        title="Serving, requests that all come at once, simulated, of no fit's rows",
        lines=tuple(flood_lines(*floods())),
    )
    yield Section(
        name="serving-calibrated",
        title="Serving, time per output token after a calibration by a card's own runs, mean relative error",
        lines=tuple(calibrated_lines(cases)),
    )
    yield Section(
        name="serving-drafts",
        title="Serving with multi-token prediction, time per output token by the part of the drafts accepted",
        lines=tuple(_drafts(drafting_cases())),
    )
    reasons = tuple(f"{count:6d}  {reason}" for reason, count in sorted(left_out.items()))
    yield Section(name="serving-left-out", title="Serving, rows that are no case", lines=reasons)


def planned(case: LatencyCase) -> SteadyState:
    """Return what the planner answers, for as many clients as requests ran at once."""
    places = max(1, round(case.batch))
    return closed_loop(pace_of(case.work, case.traffic), case.traffic, clients=case.batch, places=places)


def token_seconds(case: LatencyCase) -> float:
    """Return the planner's time between tokens."""
    return planned(case).tpot_seconds


def first_token_seconds(case: LatencyCase) -> float:
    """Return the planner's time to the first token."""
    return planned(case).ttft_seconds


def _table(problem: Problem, planned: Floats) -> Iterator[str]:
    held_out = problem.held_out()
    yield f"{'engine':8} {'model':20} {'rows':>5} {'planned':>18} {'model held out':>18}"
    for engine in np.unique(problem.engines):
        of_engine = problem.engines == engine
        for family in np.unique(problem.families[of_engine]):
            rows = of_engine & (problem.families == family)
            yield f"{engine:8} {family:20} {rows.sum():5} {_errors(problem, planned, rows)} " + _errors(
                problem, held_out, rows
            )
        yield f"{engine:8} {'all':20} {of_engine.sum():5} {_errors(problem, planned, of_engine)} " + _errors(
            problem, held_out, of_engine
        )
    everything = np.ones(len(planned), bool)
    yield f"{'all':8} {'all':20} {len(planned):5} {_errors(problem, planned, everything)} " + _errors(
        problem, held_out, everything
    )


def _by_load(cases: Sequence[LatencyCase]) -> Iterator[str]:
    """Yield the errors by load and by format, each row's model held out."""
    yield f"{'what':14} {'of':10} {'rows':>5} {'model held out':>18} {'within band':>12}"
    for name, make in (("token", token_problem), ("first token", first_token_problem)):
        problem = make(cases)
        timed = [case for case in cases if name == "token" or case.first_token_seconds]
        estimates = problem.held_out()
        inside = within_bands(problem, estimates)
        requests = np.array([case.batch / case.work.attention_data_parallel for case in timed])
        formats = np.array([case.work.attention.rank.weights.name for case in timed])
        groups = [(f"{low}-{high}", (requests >= low) & (requests < high + 1)) for low, high in LOADS]
        groups += [(str(each), formats == each) for each in np.unique(formats)]
        for what, rows in groups:
            if rows.any():
                errors = _errors(problem, estimates, rows)
                yield f"{name:14} {what:10} {rows.sum():5} {errors} {inside[rows].mean():12.0%}"


def _kept_back(cases: Sequence[LatencyCase]) -> Iterator[str]:
    """Yield how well a fit, and the band of its models held out, hold on deployments that neither saw."""
    seen = [case for case in cases if not is_kept_back(case)]
    unseen = [case for case in cases if is_kept_back(case)]
    yield f"{'what':14} {'engine':8} {'rows':>5} {'error':>18} {'within band':>12}"
    for name, make in (("token", token_problem), ("first token", first_token_problem)):
        known, asked = make(seen), make(unseen)
        estimates = asked.estimates(known.fit(np.ones(len(known.measured), bool)))
        held_out = known.held_out()
        for engine in np.unique(asked.engines):
            rows = asked.engines == engine
            low, high = band(known, held_out, engine)
            ratios = (asked.measured / estimates)[rows]
            within = np.mean((low <= ratios) & (ratios <= high))
            yield f"{name:14} {engine:8} {rows.sum():5} {_errors(asked, estimates, rows)} {within:12.0%}"
        everything = np.ones(len(asked.measured), bool)
        yield f"{name:14} {'all':8} {len(asked.measured):5} {_errors(asked, estimates, everything)}"


def _sources(cases: Sequence[LatencyCase]) -> Iterator[str]:
    """Yield how well a fit to one campaign holds on the other, which has other models, loads and settings."""
    names = np.array([case.source for case in cases])
    yield f"{'what':14} {'source':8} {'rows':>5} {'left out':>18}"
    for name, make in (("token", token_problem), ("first token", first_token_problem)):
        problem = replace(make(cases), families=names)
        estimates = problem.held_out()
        for source in np.unique(names):
            rows = names == source
            yield f"{name:14} {source:8} {rows.sum():5} {_errors(problem, estimates, rows)}"


def _drafts(cases: Sequence[LatencyCase]) -> Iterator[str]:
    """Yield how far the planner is from runs with drafts at acceptances that none of them prints."""
    yield f"{'accepted':>10} {'rows':>5} {'error':>8} {'planned/measured':>18}"
    for accepted in ACCEPTANCES:
        drafted = [replace(case, traffic=replace(case.traffic, acceptance_fraction=accepted)) for case in cases]
        ratios = np.array([token_seconds(case) / case.token_seconds for case in drafted])
        yield f"{accepted:10.1f} {len(cases):5} {np.abs(ratios - 1).mean():8.1%} {np.median(ratios):18.2f}"
    plain = [replace(case, traffic=replace(case.traffic, draft_tokens=0)) for case in cases]
    ratios = np.array([token_seconds(case) / case.token_seconds for case in plain])
    yield f"{'no drafts':>10} {len(cases):5} {np.abs(ratios - 1).mean():8.1%} {np.median(ratios):18.2f}"


def _errors(problem: Problem, estimates: Floats, rows: np.typing.NDArray[np.bool_]) -> str:
    sizes = np.abs(estimates / problem.measured - 1)[rows]
    return f"{sizes.mean():8.1%} ({np.median(sizes):6.1%})"
