"""The search: all axes at once, memory first, time for what fits, one deterministic order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planners.errors import ImpossibleLayout
from planners.hardware import Hardware
from planners.layout.axes import candidate_layouts, gpu_counts, offload_choices
from planners.layout.candidates import Candidates, FloatArray, IntArray, concatenate
from planners.layout.ranking import Ranked, best_index, closest_index, pareto_front
from planners.layout.rules import obey, rule_by_name
from planners.memory.job import Job
from planners.memory.peak import peak_bytes, verdicts
from planners.questions import TrainingQuestion
from planners.timing.efficiency import load_efficiency
from planners.timing.step import step_seconds

# Arrays of this many layouts stay in the processor's cache and bound the search's memory.
LAYOUTS_A_CHUNK = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Evaluated layouts of one framework; `seconds` is infinite where memory does not fit."""

    job: Job
    layouts: Candidates
    peaks: FloatArray
    verdicts: FloatArray
    seconds: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the search returns: (pool, index) of the plan and of the alternatives, and its counts."""

    pools: tuple[Pool, ...]
    chosen: tuple[int, int]
    alternatives: tuple[tuple[int, int], ...]
    fits: bool
    considered: int
    excluded: int
    fitting: int


def search(question: TrainingQuestion, jobs: Sequence[Job]) -> Found:
    """Return the best layout of all jobs' frameworks, or the closest where none fits.

    Raises `ImpossibleLayout` with the commonest reason when rules leave nothing.
    """
    excluded: Counter[str] = Counter()
    pools: list[Pool] = []
    for with_offload in (False, True):
        for counts in gpu_counts(question):
            batch = [
                _pool(question, job, counts, excluded, with_offload=with_offload)
                for job in jobs
                if offload_choices(question, job.profile.can, last_resort=with_offload)
            ]
            pools.extend(pool for pool in batch if len(pool.layouts))
            if question.hardware.gpus.is_free and _any_fits(batch):
                break
        if _any_fits(pools):
            break
    if not pools:
        raise _nothing_possible(question, excluded)
    return _choose(question, _merged(pools), sum(excluded.values()))


def _any_fits(pools: Sequence[Pool]) -> bool:
    return any(bool((pool.verdicts > 0).any()) for pool in pools)


def _pool(
    question: TrainingQuestion,
    job: Job,
    counts: IntArray,
    excluded: Counter[str],
    *,
    with_offload: bool,
) -> Pool:
    """Return the evaluated layouts of one framework for one batch of GPU counts."""
    everything = candidate_layouts(question, job, counts, with_offload=with_offload)
    if not len(everything):
        excluded["degrees_multiply_to_gpus"] += 1
        return _evaluated(everything, job, question.hardware)
    obeyed = obey(everything, job)
    excluded.update(obeyed.excluded)
    return _evaluated(everything.take(np.flatnonzero(obeyed.allowed)), job, question.hardware)


def _evaluated(layouts: Candidates, job: Job, hardware: Hardware) -> Pool:
    efficiency = load_efficiency(job.profile.name, hardware.gpu.id)
    peaks = np.empty(len(layouts))
    seconds = np.full(len(layouts), math.inf)
    judged = np.zeros(len(layouts))
    for start in range(0, len(layouts), LAYOUTS_A_CHUNK):
        chunk = slice(start, start + LAYOUTS_A_CHUNK)
        some = layouts.take(chunk)
        peaks[chunk] = peak_bytes(some, job)
        judged[chunk] = verdicts(peaks[chunk], job, hardware)
        fitting = np.flatnonzero(judged[chunk] > 0)
        if fitting.size:
            close = peaks[start + fitting]
            seconds[start + fitting] = step_seconds(some.take(fitting), job, hardware, efficiency, close).total
    return Pool(job=job, layouts=layouts, peaks=peaks, verdicts=judged, seconds=seconds)


def _merged(pools: Sequence[Pool]) -> tuple[Pool, ...]:
    """Return one pool a framework, in the order of first appearance."""
    by_name: dict[str, list[Pool]] = {}
    for pool in pools:
        by_name.setdefault(pool.job.profile.name, []).append(pool)
    return tuple(
        Pool(
            job=some[0].job,
            layouts=concatenate([pool.layouts for pool in some]),
            peaks=np.concatenate([pool.peaks for pool in some]),
            verdicts=np.concatenate([pool.verdicts for pool in some]),
            seconds=np.concatenate([pool.seconds for pool in some]),
        )
        for some in by_name.values()
    )


def _choose(question: TrainingQuestion, pools: tuple[Pool, ...], excluded: int) -> Found:
    owner = np.concatenate([np.full(len(pool.layouts), number) for number, pool in enumerate(pools)])
    index = np.concatenate([np.arange(len(pool.layouts)) for pool in pools])
    ranked = Ranked(
        layouts=concatenate([pool.layouts for pool in pools]),
        peaks=np.concatenate([pool.peaks for pool in pools]),
        verdicts=np.concatenate([pool.verdicts for pool in pools]),
        seconds=np.concatenate([pool.seconds for pool in pools]),
    )
    fits = bool((ranked.verdicts > 0).any())
    best = best_index(ranked, question) if fits else closest_index(ranked)
    front = [other for other in pareto_front(ranked) if other != best] if fits else []
    return Found(
        pools=pools,
        chosen=(int(owner[best]), int(index[best])),
        alternatives=tuple((int(owner[other]), int(index[other])) for other in front),
        fits=fits,
        considered=len(ranked.layouts),
        excluded=excluded,
        fitting=int(np.count_nonzero(ranked.verdicts > 0)),
    )


def _nothing_possible(question: TrainingQuestion, excluded: Counter[str]) -> ImpossibleLayout:
    """Return the error that names the rule most layouts break."""
    name = excluded.most_common(1)[0][0] if excluded else "degrees_multiply_to_gpus"
    if name == "degrees_multiply_to_gpus":
        count = question.hardware.gpus
        return ImpossibleLayout(
            f"No degrees multiply to {count.minimum} to {count.maximum} GPUs with those that are fixed.", rule=name
        )
    rule = rule_by_name(name)
    pointer = f"/layout/{rule.field}" if rule.field else "/layout"
    return ImpossibleLayout(f"No layout can exist: {rule.reason}.", rule=name, pointer=pointer)
