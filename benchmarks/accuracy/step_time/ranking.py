"""How answers rank measured layouts of one job: Kendall's τ, regret, and which pairs are told apart."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy.asking import Json
from benchmarks.accuracy.document import Section
from benchmarks.accuracy.step_time.statistics import FloatArray, kendall_tau, regret
from benchmarks.accuracy.step_time.timed_runs import DENSE, EXPERTS, SWEEP, TimedAnswer
from plimsoll.planners.ground.terms import RECOMPUTE_MODES
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.search.ranking import NEAR_EQUAL_FRACTION, complexity
from plimsoll.planners.timing.efficiency import load_efficiency

# Fields of a request's training that are choices of a layout, which the rest of the request is not.
CHOICES = frozenset({"micro_batch_size", "recompute", "activation_offload"})
DEGREES = (
    *("data_parallel", "tensor_parallel", "pipeline_parallel", "virtual_pipeline", "context_parallel"),
    *("expert_parallel", "sequence_parallel", "zero_stage", "shard_group", "micro_batch_size"),
)
TOLERANCES = (NEAR_EQUAL_FRACTION, 0.03, 0.05, 0.10, 0.20)
# The share of pairs further apart than a tie that are to go as estimated; errors are as likely of either sign.
ORDERED_SHARE = 0.90
# A pipeline stalled if it took over half as much longer as its stack's slow mode does: few runs are in between.
STALLED_SHARE, STALL_ROUNDING = 0.5, 1e-9
NAME_WIDTH = 38
ORDER_HEADING = f"{'':24} jobs  pairs  as answered  by fits without source  stated | " + " | ".join(
    f"{part:>15}  as estimated" for part in ("pairs in a tie", "further apart")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedJob:
    """Measured layouts of one job on the same GPUs; seconds are those of a sequence, repeats of a layout are one."""

    source: str
    stack: str
    kind: str
    answers: tuple[TimedAnswer, ...]
    estimated: FloatArray
    measured: FloatArray

    @property
    def tie_fraction(self) -> float:
        """Return within how much of each other the service says that such layouts are equal."""
        stack = load_efficiency(self.stack).stack
        return stack.expert_tie_fraction if self.kind == EXPERTS else stack.tie_fraction

    @property
    def pairs(self) -> tuple[FloatArray, FloatArray]:
        """Return the logarithms of each pair's estimated and measured ratio."""
        upper = np.triu_indices(self.estimated.size, 1)
        logs = (np.log(seconds) for seconds in (self.estimated, self.measured))
        first, second = (log[upper[0]] - log[upper[1]] for log in logs)
        return first, second


def ranked_jobs(told: Sequence[TimedAnswer], multiples: Mapping[int, float] | None = None) -> list[RankedJob]:
    """Return the jobs that several layouts were measured of, of the runs that the service answered.

    Runs that are alone with their job are ranked in the group that their file has them in.

    `multiples` are by an answer's place what its estimate is multiplied by: what a fit without its source makes of it.
    """
    named: dict[tuple[str, ...], dict[str, list[int]]] = {}
    for place, one in enumerate(told):
        if one.step is not None:
            layout = json.dumps(one.run.request, sort_keys=True)
            named.setdefault(_job_of(one), {}).setdefault(layout, []).append(place)
    alone = [places for layouts in named.values() if len(layouts) == 1 for places in layouts.values()]
    groups: dict[str, list[list[int]]] = {}
    for places in alone:
        groups.setdefault(told[places[0]].run.group, []).append(places)
    together = [list(layouts.values()) for layouts in named.values()]
    together += [members for group, members in groups.items() if group]
    return [_ranked(told, layouts, multiples or {}) for layouts in together if len(layouts) > 1]


def _job_of(one: TimedAnswer) -> tuple[str, ...]:
    request = one.run.request
    training = {name: value for name, value in request["training"].items() if name not in CHOICES}
    job = json.dumps([request["model"], request["hardware"], training], sort_keys=True)
    return one.run.source, one.run.stack, one.run.kind, job


def _ranked(told: Sequence[TimedAnswer], layouts: Sequence[Sequence[int]], multiples: Mapping[int, float]) -> RankedJob:
    answers = tuple(told[places[0]] for places in layouts)
    run = answers[0].run
    sequences = np.array([one.run.request["training"]["global_batch_size"] for one in answers])
    measured = [math.exp(np.mean([math.log(told[place].run.seconds) for place in places])) for places in layouts]
    estimated = [(told[places[0]].step or {})["seconds"] * multiples.get(places[0], 1.0) for places in layouts]
    return RankedJob(
        source=run.source,
        stack=run.stack,
        kind=run.kind,
        answers=answers,
        estimated=np.array(estimated) / sequences,
        measured=np.array(measured) / sequences,
    )


def ranking_sections(told: Sequence[TimedAnswer]) -> Iterator[Section]:
    """Yield τ and regret by source, and the regret of other choices among near equals."""
    jobs = ranked_jobs(told)
    title = "Ranking of measured layouts of one job, by source"
    yield Section(name="time-ranking-by-source", title=title, lines=tuple(_by_source(jobs)))
    title = "Ranking, mean regret of choices among layouts within some of the fastest estimate"
    yield Section(name="time-ranking-choices", title=title, lines=tuple(_choices(jobs)))


def _by_source(jobs: Sequence[RankedJob]) -> Iterator[str]:
    halves = " | ".join(f"{part:>15}  as estimated" for part in ("pairs in a tie", "further apart"))
    yield f"{'fit':5} {'':{NAME_WIDTH}} jobs layouts    tau  regret   worst | {halves}"
    seen = {one.source: one.answers[0].run.is_seen for one in jobs}
    for word, is_seen in (("saw", True), ("-", False)):
        for source in sorted(name for name, value in seen.items() if value is is_seen):
            yield _source_line(word, source, [one for one in jobs if one.source == source])


def _source_line(word: str, source: str, jobs: Sequence[RankedJob]) -> str:
    lost = [regret(job.estimated, job.measured) for job in jobs]
    tau = np.nanmean([kendall_tau(job.estimated, job.measured) for job in jobs])
    cells = " | ".join(order_cells(jobs, is_tied=part) for part in (True, False))
    layouts = sum(job.measured.size for job in jobs)
    return (
        f"{word:5} {source[:NAME_WIDTH]:{NAME_WIDTH}} {len(jobs):4d} {layouts:7d} {tau:6.2f} {np.mean(lost):7.1%} "
        f"{max(lost):7.1%} | {cells}"
    )


def order_cells(jobs: Sequence[RankedJob], *, is_tied: bool) -> str:
    """Return how many pairs of layouts are equal within the band, or are not, and what share goes as estimated."""
    right: list[bool] = []
    for job in jobs:
        estimated, measured = job.pairs
        chosen = (np.abs(estimated) <= math.log1p(job.tie_fraction)) == is_tied
        right.extend((estimated * measured > 0)[chosen].tolist())
    return f"{len(right):15d} {np.mean(right):13.0%}" if right else f"{0:15d} {'-':>13}"


def is_stalled(one: TimedAnswer) -> bool:
    """Return whether a run took longer than estimated by over half of what its stack's slow mode adds."""
    if one.step is None or one.run.kind != SWEEP:
        return False
    _, high = load_efficiency(one.run.stack, one.run.gpu).band(experts=False)
    stall, seconds = one.step["high_seconds"] - high * one.step["seconds"], one.step["seconds"]
    return bool(stall > STALL_ROUNDING * seconds and one.run.seconds - seconds > STALLED_SHARE * stall)


def order_section(told: Sequence[TimedAnswer], multiples: Mapping[int, float]) -> Section:
    """Return how far apart layouts must be to be told apart, as answered and by fits without their source."""
    steady = [one for one in told if not is_stalled(one)]
    answered, refitted, without_stalls = ranked_jobs(told), ranked_jobs(told, multiples), ranked_jobs(steady)
    kinds: Mapping[str, tuple[list[RankedJob], list[RankedJob]]] = {
        "dense": tuple([job for job in jobs if job.kind == DENSE] for jobs in (answered, refitted)),
        "experts": tuple([job for job in jobs if job.kind == EXPERTS] for jobs in (answered, refitted)),
        "nanotron": ([job for job in answered if job.kind == SWEEP], []),
        "nanotron, none stalled": ([job for job in without_stalls if job.kind == SWEEP], []),
    }
    return Section(
        name="time-order",
        title="How far apart estimates must be for nine of ten pairs of layouts to go as estimated",
        lines=(ORDER_HEADING, *(_order_line(name, *jobs) for name, jobs in kinds.items())),
    )


def _order_line(name: str, answered: Sequence[RankedJob], refitted: Sequence[RankedJob]) -> str:
    pairs = sum(job.pairs[0].size for job in answered)
    without = f"{tie_of(refitted):23.1%}" if refitted else f"{'no other source':>23}"
    judged = refitted or answered
    cells = " | ".join(order_cells(judged, is_tied=part) for part in (True, False))
    return (
        f"{name:24} {len(answered):4d} {pairs:6d} {tie_of(answered):12.1%} {without} "
        f"{judged[0].tie_fraction:7.0%} | {cells}"
    )


def tie_of(jobs: Sequence[RankedJob]) -> float:
    """Return how far estimates must be apart for the wanted share of pairs to go as estimated.

    Each layout of a job counts once, however many pairs it is in.
    """
    errors, weights = [], []
    for job in jobs:
        estimated, measured = job.pairs
        errors.append(np.abs(measured - estimated))
        weights.append(np.full(estimated.size, (job.measured.size - 1) / estimated.size))
    size, weight = np.concatenate(errors), np.concatenate(weights)
    order = np.argsort(size)
    share = np.cumsum(weight[order]) / weight.sum()
    # Where nine of ten are ordered one in ten errs to the wrong side, and one to the other.
    place = np.searchsorted(share, 1 - 2 * (1 - ORDERED_SHARE) - 1e-12)
    return float(np.expm1(size[order][place]))


def _choices(jobs: Sequence[RankedJob]) -> Iterator[str]:
    kinds: Mapping[str, Callable[[RankedJob], bool]] = {
        "dense": lambda job: job.kind not in (EXPERTS, SWEEP),
        "experts": lambda job: job.kind == EXPERTS,
        "nanotron": lambda job: job.kind == SWEEP,
    }
    orders: Mapping[str, Callable[[FloatArray, FloatArray, FloatArray], FloatArray]] = {
        "the fastest of the simplest": lambda seconds, parts, peaks: np.lexsort((peaks, seconds, parts)),
        "the roomiest of the simplest": lambda seconds, parts, peaks: np.lexsort((seconds, peaks, parts)),
        "the roomiest": lambda seconds, _, peaks: np.lexsort((seconds, peaks)),
    }
    yield f"{'':30} within" + "".join(f"{name:>10}" for name in kinds)
    for name, order in orders.items():
        for tolerance in TOLERANCES:
            lost = [np.mean([_lost(job, tolerance, order) for job in jobs if own(job)]) for own in kinds.values()]
            yield f"{name:30} {tolerance:6.0%}" + "".join(f"{value:10.1%}" for value in lost)


def _lost(job: RankedJob, tolerance: float, order: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]) -> float:
    plans = [one.answer["plan"] for one in job.answers if isinstance(one.answer, Mapping)]
    near = np.flatnonzero(job.estimated <= job.estimated.min() * (1 + tolerance))
    parts = np.array([moving_parts(plan["layout"]) for plan in plans])
    peaks = np.array([plan["memory"]["peak_bytes"] for plan in plans])
    first = near[int(order(job.estimated[near], parts[near], peaks[near])[0])]
    return float(job.measured[first] / job.measured.min() - 1)


def moving_parts(layout: Json) -> float:
    """Return the moving parts of an answered layout, as the search counts them."""
    row = {name: layout[name] for name in DEGREES} | {
        "recompute": RECOMPUTE_MODES.index(layout["recompute"]),
        "fused_cross_entropy": bool(layout["fused_cross_entropy"]),
        "offload": int(layout["offload"] != "none"),
        "activation_offload": bool(layout["activation_offload"]),
    }
    return float(complexity(candidates_from_rows([row]))[0])
