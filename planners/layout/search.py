"""The search: all axes at once, memory first, time for what fits, one deterministic order."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planners.errors import ImpossibleLayout, PlanningStopped
from planners.hardware import Hardware
from planners.layout.axes import candidate_grid, gpu_counts, offload_choices
from planners.layout.candidates import Candidates, FloatArray, IntArray, concatenate
from planners.layout.grid import Cells, Grid, along_bases
from planners.layout.objectives import has_enough
from planners.layout.ranking import Ranked, best_index, closest_index, contenders, pareto_front
from planners.layout.rules import obey, rule_by_name
from planners.memory.job import Job
from planners.memory.peak import peak_bytes, verdicts
from planners.plans import Step
from planners.questions import TrainingQuestion
from planners.stopping import ShouldStop, never
from planners.timing.efficiency import Efficiency, efficiency_on
from planners.timing.step import (
    StepSeconds,
    concatenated,
    step_of,
    step_seconds,
    told,
    untimed,
)

# Arrays of this many layouts stay in a processor's larger caches and bound the search's memory; with fewer the calls of
# Python are paid more often.
LAYOUTS_A_CHUNK = 65_536
# Larger than any array of a chunk: three stages of five moments in fp64.
KEPT_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The contenders among one framework's layouts, as a list; `seconds` is infinite where memory does not fit.

    `steps` are the parts of `seconds`.

    `considered` counts the layouts whose memory was evaluated, `fitting` those of them that fit.
    """

    job: Job
    layouts: Candidates
    peaks: FloatArray
    verdicts: FloatArray
    seconds: FloatArray
    steps: StepSeconds
    considered: int
    fitting: int

    def step(self, index: int, hardware: Hardware) -> Step:
        """Return the step of one of the layouts, timed now where it does not fit."""
        job, efficiency = self.job, efficiency_on(self.job.profile.name, hardware)
        if self.seconds[index] == math.inf:
            return step_of(self.layouts, index, job, hardware, efficiency, float(self.peaks[index]))
        return told(self.steps, self.layouts, index, job, hardware, efficiency)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluated:
    """Contenders of some bases: their cells of the whole grid, in its order, and what was found of them."""

    cells: IntArray
    peaks: FloatArray
    verdicts: FloatArray
    seconds: FloatArray
    steps: StepSeconds
    fitting: int


def search(question: TrainingQuestion, jobs: Sequence[Job], should_stop: ShouldStop = never) -> Found:
    """Return the best layout of all jobs' frameworks, or the closest where none fits.

    `should_stop` is asked before every chunk of layouts. Raises `PlanningStopped`
    once it says so, and `ImpossibleLayout` with the commonest reason when rules
    leave nothing.
    """
    _keep_freed_memory()
    excluded: Counter[str] = Counter()
    pools: list[Pool] = []
    for with_offload in (False, True):
        for counts in gpu_counts(question):
            tried = (
                _pool(question, job, counts, excluded, with_offload=with_offload, should_stop=should_stop)
                for job in jobs
                if offload_choices(question, job.profile.can, last_resort=with_offload)
            )
            batch = [pool for pool in tried if pool is not None]
            pools.extend(batch)
            if has_enough(question, (pool.seconds for pool in batch)):
                break
        if _any_fits(pools):
            break
    if not pools:
        raise _nothing_possible(question, excluded)
    return _choose(question, _merged(pools), sum(excluded.values()))


@functools.cache
def _keep_freed_memory() -> None:
    """Let the allocator keep what a formula's arrays give back for the next ones; once told, it keeps to it.

    glibc asks the kernel for every block above a threshold, and gives it back
    when freed, so that each array's pages are new and touched for the first time;
    once a larger block was freed the threshold is that block's size (mallopt(3),
    M_MMAP_THRESHOLD). Other allocators take no notice.
    """
    np.empty(KEPT_BYTES, dtype=np.uint8)


def _any_fits(pools: Sequence[Pool]) -> bool:
    return any(pool.fitting for pool in pools)


def _pool(
    question: TrainingQuestion,
    job: Job,
    counts: IntArray,
    excluded: Counter[str],
    *,
    with_offload: bool,
    should_stop: ShouldStop,
) -> Pool | None:
    """Return the contenders of one framework for one batch of GPU counts; None where no layout can exist."""
    everything = candidate_grid(question, job, counts, with_offload=with_offload)
    if not everything.bases:
        excluded["degrees_multiply_to_gpus"] += 1
        return None
    obeyed = obey(everything.layouts, job, everything.distinct)
    excluded.update(obeyed.excluded)
    possible = replace(everything, distinct=obeyed.allowed)
    bases = np.flatnonzero(obeyed.allowed.any(axis=(0, 1, 2)))
    if not bases.size:
        return None
    # Bases of as many deciding stages stand together, so that fewer stages are worked out in vain.
    order = np.argsort(np.minimum(along_bases(everything.layouts.pipeline_parallel, bases), 2), kind="stable")
    return _evaluated(possible, bases[order], job, question.hardware, should_stop)


def _evaluated(grid: Grid, bases: IntArray, job: Job, hardware: Hardware, should_stop: ShouldStop) -> Pool:
    """Return the contenders among some bases of a grid, in the grid's order."""
    efficiency = efficiency_on(job.profile.name, hardware)
    step = max(LAYOUTS_A_CHUNK // math.prod(grid.shape[:-1]), 1)
    parts = []
    for start in range(0, bases.size, step):
        if should_stop():
            raise PlanningStopped
        parts.append(_contenders_of(grid, bases[start : start + step], job, hardware, efficiency))
    found = parts[0] if len(parts) == 1 else _in_order(grid, parts)
    return Pool(
        job=job,
        layouts=grid.take(found.cells),
        peaks=found.peaks,
        verdicts=found.verdicts,
        seconds=found.seconds,
        steps=found.steps,
        considered=len(grid),
        fitting=found.fitting,
    )


def _contenders_of(grid: Grid, bases: IntArray, job: Job, hardware: Hardware, efficiency: Efficiency) -> _Evaluated:
    """Return the layouts of some bases that can still win or, where none fits, those nearest to it; in order."""
    part = grid.of_bases(bases)
    peaks = peak_bytes(part.layouts, job)
    fits = (peaks <= hardware.limit_bytes) & part.distinct
    cells = np.flatnonzero(fits)
    fitting = cells.size
    if not fitting:
        least = peaks[part.distinct].min()
        cells = _in_whole(np.flatnonzero((peaks == least) & part.distinct), part, bases, grid)
        count = cells.size
        return _Evaluated(
            cells=cells[np.argsort(grid.order(cells))],
            peaks=np.full(count, least),
            verdicts=np.zeros(count),
            seconds=np.full(count, math.inf),
            steps=untimed(count),
            fitting=0,
        )
    found = peaks.ravel()[cells]
    every = step_seconds(part.layouts, job, hardware, efficiency, peaks)
    seconds: FloatArray = np.broadcast_to(every.total, part.shape).ravel()[cells]
    judged = verdicts(found, job, hardware)
    kept = contenders(part.layouts.gpus[cells % part.bases], found, judged, seconds)
    whole = _in_whole(cells[kept], part, bases, grid)
    turn = np.argsort(grid.order(whole))
    kept = kept[turn]
    return _Evaluated(
        cells=whole[turn],
        peaks=found[kept],
        verdicts=judged[kept],
        seconds=seconds[kept],
        steps=every.at_cells(Cells(cells[kept], part.shape)),
        fitting=fitting,
    )


def _in_whole(cells: IntArray, part: Grid, bases: IntArray, grid: Grid) -> IntArray:
    """Return where cells of the grid of some bases stand in the whole grid."""
    return cells // part.bases * grid.bases + bases[cells % part.bases]


def _in_order(grid: Grid, parts: Sequence[_Evaluated]) -> _Evaluated:
    """Return the contenders of all parts in the grid's order."""
    cells = np.concatenate([part.cells for part in parts])
    turn = np.argsort(grid.order(cells))
    return _Evaluated(
        cells=cells[turn],
        peaks=np.concatenate([part.peaks for part in parts])[turn],
        verdicts=np.concatenate([part.verdicts for part in parts])[turn],
        seconds=np.concatenate([part.seconds for part in parts])[turn],
        steps=concatenated([part.steps for part in parts]).at_cells(Cells(turn, turn.shape)),
        fitting=sum(part.fitting for part in parts),
    )


def _merged(pools: Sequence[Pool]) -> tuple[Pool, ...]:
    """Return one pool a framework, in the order of first appearance."""
    by_name: dict[str, list[Pool]] = {}
    for pool in pools:
        by_name.setdefault(pool.job.profile.name, []).append(pool)
    return tuple(some[0] if len(some) == 1 else _one_pool(some) for some in by_name.values())


def _one_pool(some: Sequence[Pool]) -> Pool:
    """Return the pool of all layouts of one framework's pools."""
    return Pool(
        job=some[0].job,
        layouts=concatenate([pool.layouts for pool in some]),
        peaks=np.concatenate([pool.peaks for pool in some]),
        verdicts=np.concatenate([pool.verdicts for pool in some]),
        seconds=np.concatenate([pool.seconds for pool in some]),
        steps=concatenated([pool.steps for pool in some]),
        considered=sum(pool.considered for pool in some),
        fitting=sum(pool.fitting for pool in some),
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
        considered=sum(pool.considered for pool in pools),
        excluded=excluded,
        fitting=sum(pool.fitting for pool in pools),
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
