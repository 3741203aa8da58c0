"""The search: all axes at once, memory first, time for what fits, one deterministic order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from plimsoll.planners.ground.errors import ImpossibleLayout
from plimsoll.planners.ground.stopping import ShouldStop, never
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import IntArray, any_of
from plimsoll.planners.layouts.grid import Grid
from plimsoll.planners.memory.peak import FITS, TIGHT
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.axes import candidate_grid
from plimsoll.planners.search.best import Best, best_of
from plimsoll.planners.search.beyond import Beyond, all_of_few, beyond_usual, faster, least_memory, on_drives
from plimsoll.planners.search.gpu_counts import gpu_counts, usual_counts
from plimsoll.planners.search.objectives import has_enough
from plimsoll.planners.search.pool import Pool, evaluated, keep_freed_memory, merged, ranked
from plimsoll.planners.search.ranking import best_index, closest_index, pareto_front
from plimsoll.planners.search.rules.every import obey, rule_by_name
from plimsoll.planners.search.rules.fields import request_pointer
from plimsoll.planners.search.rules.request import DEGREES_MULTIPLY_TO_GPUS
from plimsoll.planners.search.unbeaten import bounded, unbeaten


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the search returns: (pool, index) of the plan and of the alternatives, and its counts.

    `searched` names the frameworks that were looked through; `measured_on_host` says that unmeasured ones are among
    them because the best layout of the others keeps states on the host.
    """

    pools: tuple[Pool, ...]
    chosen: tuple[int, int]
    alternatives: tuple[tuple[int, int], ...]
    fits: bool
    considered: int
    excluded: int
    fitting: int
    searched: tuple[str, ...]
    measured_on_host: bool


def search(
    question: TrainingQuestion, jobs: Sequence[Job], should_stop: ShouldStop = never, *, only_room: bool = False
) -> Found:
    """Return the best layout of all jobs' frameworks, or the closest where none fits.

    Frameworks that no run measured are searched only where the best plan of the
    measured ones leaves something to be desired (`best.Best.is_enough`). With
    `only_room` layouts that fit tightly are not looked through for the fastest
    of them. `should_stop` is asked before every chunk of layouts. Raises
    `PlanningStopped` once it says so, and `ImpossibleLayout` with the commonest
    reason when rules leave nothing.
    """
    keep_freed_memory()
    excluded: Counter[str] = Counter()
    pools: list[Pool] = []
    searched: list[str] = []
    measured_on_host = False
    for is_measured in (True, False):
        some = [job for job in jobs if job.profile.measured is is_measured]
        best = best_of(question, pools)
        if some and (best is None or not best.is_enough):
            pools.extend(_searched(question, some, excluded, should_stop, only_room=only_room))
            searched.extend(job.profile.name for job in some)
            measured_on_host = best is not None and best.is_offloaded and not best.is_late
    if not pools:
        raise _nothing_possible(question, excluded)
    return _choose(question, merged(pools), sum(excluded.values()), tuple(searched), measured_on_host=measured_on_host)


def _searched(
    question: TrainingQuestion,
    jobs: Sequence[Job],
    excluded: Counter[str],
    should_stop: ShouldStop,
    *,
    only_room: bool,
) -> list[Pool]:
    """Return the contenders of some frameworks.

    Who names neither a number of GPUs nor fewest_gpus is offered offload only where no number will do without.
    """
    pools: list[Pool] = []
    is_last_resort = question.hardware.gpus.is_free and question.objective != "fewest_gpus"
    for with_offload in (False, True) if is_last_resort else (True,):
        for counts in gpu_counts(question):
            batch, others = _usual(question, jobs, counts, excluded, with_offload=with_offload, should_stop=should_stop)
            best = best_of(question, batch)
            if best is not None and (any(any_of(pool.verdicts == FITS) for pool in batch) or not only_room):
                for beyond in others:
                    best = faster(beyond, best, batch, should_stop)
            pools.extend(batch)
            if has_enough(question, (pool.seconds[pool.verdicts >= TIGHT] for pool in batch)):
                return pools
        if any(pool.fitting for pool in pools):
            break
    return pools


def _usual(
    question: TrainingQuestion,
    jobs: Sequence[Job],
    counts: IntArray,
    excluded: Counter[str],
    *,
    with_offload: bool,
    should_stop: ShouldStop,
) -> tuple[list[Pool], list[Beyond]]:
    """Return the contenders among the usual layouts on a batch of GPU counts, and what there is beyond them.

    The layouts of the least memory are among them where they could have more room than the others.
    """
    grids: list[tuple[Job, Grid]] = []
    others: list[Beyond] = []
    for job in jobs:
        beyond = beyond_usual(question, job, counts, with_offload=with_offload)
        everything = all_of_few(beyond) if len(beyond) else None
        grid = _obeying(everything or candidate_grid(question, job, usual_counts(counts)), job, excluded)
        grids.extend([] if grid is None else [(job, grid)])
        others.extend([] if everything else [beyond])
        # Layouts on drives are none of the usual ones.
        drives = on_drives(beyond) if with_offload else None
        others.extend([] if drives is None else [drives])
    pools, best = _evaluated(question, grids, should_stop)
    if best is None or best.leaves_open(counts):
        least = (least_memory(beyond, should_stop) for beyond in others)
        pools.extend(pool for pool in least if pool is not None)
    return pools, others


def _evaluated(
    question: TrainingQuestion, grids: Sequence[tuple[Job, Grid]], should_stop: ShouldStop
) -> tuple[list[Pool], Best | None]:
    """Return the contenders of several frameworks' grids, and the best; where nothing fits, the closest to it.

    The framework with the fastest layout goes first.
    """
    hardware = question.hardware
    every = (bounded(grid, job, hardware, should_stop) for job, grid in grids)
    pools: list[Pool] = []
    best: Best | None = None
    for some in sorted((some for some in every if some is not None), key=lambda one: one.fastest):
        found, best = unbeaten(some, question, pools, best, should_stop)
        pools.extend(found)
    if any(pool.fitting for pool in pools):
        return pools, best
    nearest = (evaluated(grid, job, hardware, should_stop) for job, grid in grids)
    return [pool for pool in nearest if pool is not None], None


def _obeying(everything: Grid, job: Job, excluded: Counter[str]) -> Grid | None:
    """Return a grid of one framework's layouts without those that break a rule; None where none can exist."""
    if not everything.bases:
        excluded[DEGREES_MULTIPLY_TO_GPUS.name] += 1
        return None
    obeyed = obey(everything.layouts, job, everything.distinct)
    excluded.update(obeyed.excluded)
    return replace(everything, distinct=obeyed.allowed)


def _choose(
    question: TrainingQuestion,
    pools: tuple[Pool, ...],
    excluded: int,
    searched: tuple[str, ...],
    *,
    measured_on_host: bool,
) -> Found:
    owner = np.concatenate([np.full(len(pool.layouts), number) for number, pool in enumerate(pools)])
    index = np.concatenate([np.arange(len(pool.layouts)) for pool in pools])
    found = ranked(pools)
    fits = bool(any_of(found.verdicts > 0))
    best = (
        best_index(found, question)
        if fits
        else closest_index(found, np.array([pool.job.profile.measured for pool in pools])[owner])
    )
    front = [other for other in pareto_front(found) if other != best] if fits else []
    return Found(
        pools=pools,
        chosen=(int(owner[best]), int(index[best])),
        alternatives=tuple((int(owner[other]), int(index[other])) for other in front),
        fits=fits,
        considered=sum(pool.considered for pool in pools),
        excluded=excluded,
        fitting=sum(pool.fitting for pool in pools),
        searched=searched,
        measured_on_host=measured_on_host,
    )


def _nothing_possible(question: TrainingQuestion, excluded: Counter[str]) -> ImpossibleLayout:
    """Return the error that names the rule most layouts break."""
    name = excluded.most_common(1)[0][0] if excluded else DEGREES_MULTIPLY_TO_GPUS.name
    if name == DEGREES_MULTIPLY_TO_GPUS.name:
        count = question.hardware.gpus
        gpus = str(count.minimum) if count.minimum == count.maximum else f"any of {count.minimum} to {count.maximum}"
        return ImpossibleLayout(f"With the fixed degrees no layout uses {gpus} GPUs.", rule=name)
    rule = rule_by_name(name)
    return ImpossibleLayout(f"No layout can exist: {rule.reason}.", rule=name, pointer=request_pointer(rule.field))
