"""Layouts that could win or be an alternative: all are timed, and only those that nothing known beats get memory.

The time of a layout takes a hundredth of what its memory takes to work out. One that fits, is no slower and needs no
more than another one must is better than that: the other is neither the best nor an alternative.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.ground.stopping import ShouldStop
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import BoolArray, FloatArray, IntArray
from plimsoll.planners.layouts.distinct import distinct
from plimsoll.planners.layouts.grid import Cells, Grid
from plimsoll.planners.memory.peak import TIGHT, least_bytes
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.best import Best, best_of
from plimsoll.planners.search.pool import LAYOUTS_WORTH_A_CALL, Pool, evaluated, in_chunks, known_steps, none_of, timed
from plimsoll.planners.search.ranking import complexity, kind_of_offload

# Of more than so many while nothing is known, and of very many later, those are given memory first whose least is below
# this many times that of all faster ones.
LAYOUTS_AT_FIRST, SLACK = 256, 1.1
LEAST_BYTES = "least_bytes"
NO_CELLS: dict[str, np.ndarray] = {
    **dict.fromkeys(("cell", "gpus", "offloaded"), np.zeros(0, dtype=np.int64)),
    **dict.fromkeys(("complexity", "seconds", "bytes"), np.zeros(0)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """One framework's layouts that could have room, with the least that each takes.

    Each is the `cell` of one of the `parts` of a grid. `considered` counts those without room as well.
    """

    job: Job
    parts: tuple[Grid, ...]
    part: IntArray
    cell: IntArray
    gpus: IntArray
    offloaded: IntArray
    complexity: FloatArray
    seconds: FloatArray
    bytes: FloatArray
    considered: int

    @property
    def fastest(self) -> float:
        """Return the seconds of the fastest layout; infinite without any."""
        return float(self.seconds.min(initial=math.inf))

    def of_parts(self, index: IntArray) -> Iterator[Grid]:
        """Yield the grids of some layouts."""
        for number in distinct(self.part[index])[0].tolist():
            whole = self.parts[number]
            own = np.zeros(math.prod(whole.shape), dtype=bool)
            own[self.cell[index[self.part[index] == number]]] = True
            yield replace(whole, distinct=own.reshape(whole.shape))


def bounded(grid: Grid, job: Job, hardware: Hardware, should_stop: ShouldStop) -> Bounded | None:
    """Return the distinct layouts of a grid with bounds, None where it has none.

    Raises `PlanningStopped` once `should_stop` says so.
    """
    parts = tuple(in_chunks(grid, should_stop, stages_apart=False))
    if not parts:
        return None
    with_room = tuple(some for part in parts if (some := _with_room(part, job, hardware)) is not None)
    found = [NO_CELLS, *map(_cells, with_room)]
    return Bounded(
        job=job,
        parts=with_room,
        part=np.repeat(np.arange(len(found)) - 1, [own["cell"].size for own in found]),
        considered=sum(map(len, parts)),
        **{name: np.concatenate([own[name] for own in found]) for name in NO_CELLS},
    )


def unbeaten(
    some: Bounded, question: TrainingQuestion, known: Sequence[Pool], best: Best | None, should_stop: ShouldStop
) -> tuple[list[Pool], Best | None]:
    """Return the contenders that no layout of the pools that are `known` beats, in pools, and the best after them.

    `best` is the best of those that are known.
    """
    left = np.ones(some.cell.size, dtype=bool)
    found: list[Pool] = []
    while True:
        index = np.flatnonzero(left & _could_count(some, best, (*known, *found)))
        if not index.size:
            break
        if index.size > (LAYOUTS_WORTH_A_CALL if known or found else LAYOUTS_AT_FIRST):
            index = _likely(some, index)
        left[index] = False
        pools = (evaluated(part, some.job, question.hardware, should_stop) for part in some.of_parts(index))
        found.extend(pool for pool in pools if pool is not None)
        best = best_of(question, (*known, *found))
    passed_over = some.considered - sum(pool.considered for pool in found)
    if passed_over:
        found.append(replace(none_of(some.job), considered=passed_over))
    return found, best


def _with_room(part: Grid, job: Job, hardware: Hardware) -> Grid | None:
    """Return the layouts that have room for the least they take, which is known of them, timed; None without any."""
    least = least_bytes(part.layouts, job)
    some = replace(part, distinct=part.distinct & (least <= hardware.limit_bytes), known={LEAST_BYTES: least})
    return timed(some.smallest(), job, hardware) if some.distinct.any() else None


def _cells(part: Grid) -> dict[str, np.ndarray]:
    """Return what `Bounded` has of the layouts of a grid whose steps and least bytes are known."""
    layouts, cells = part.layouts, np.flatnonzero(part.cells)
    at = Cells(cells, part.shape)
    return {
        "cell": cells,
        "gpus": at.of(layouts.gpus),
        "offloaded": at.of(kind_of_offload(layouts)),
        "complexity": at.of(complexity(layouts)),
        "seconds": at.of(known_steps(part).total),
        "bytes": at.of(part.known[LEAST_BYTES]),
    }


def _could_count(some: Bounded, best: Best | None, known: Sequence[Pool]) -> BoolArray:
    """Return where a layout could be the best, or takes less memory than all known ones that are as fast."""
    if best is None:
        return np.ones(some.cell.size, dtype=bool)
    could: BoolArray = best.could_lose_to(some.gpus, some.seconds, some.complexity)
    return could | (some.bytes < _least_of_faster(some, known))


def _least_of_faster(some: Bounded, known: Sequence[Pool]) -> FloatArray:
    """Return the least peak of known layouts that are sure to fit and no slower; infinite where there is none.

    On another number of GPUs, or with something else on the host, a layout is none the worse for them.
    """
    sure = [pool.verdicts >= TIGHT for pool in known]
    seconds, peaks = (
        np.concatenate([getattr(pool, name)[own] for pool, own in zip(known, sure, strict=True)])
        for name in ("seconds", "peaks")
    )
    kinds = np.concatenate(
        [_kind(pool.layouts.gpus, kind_of_offload(pool.layouts))[own] for pool, own in zip(known, sure, strict=True)]
    )
    least = np.full(some.cell.size, math.inf)
    mine = _kind(some.gpus, some.offloaded)
    for kind in distinct(mine)[0].tolist():
        own = np.flatnonzero(kinds == kind)
        own = own[np.argsort(seconds[own])]
        here = np.flatnonzero(mine == kind)
        place = np.searchsorted(seconds[own], some.seconds[here], side="right")
        least[here] = np.concatenate([[math.inf], np.minimum.accumulate(peaks[own])])[place]
    return least


def _likely(some: Bounded, index: IntArray) -> IntArray:
    """Return of many layouts those that would count if each took little more than it must."""
    kinds, chosen = _kind(some.gpus[index], some.offloaded[index]), []
    for kind in distinct(kinds)[0].tolist():
        own = index[kinds == kind]
        own = own[np.argsort(some.seconds[own], kind="stable")]
        least = some.bytes[own]
        before = np.concatenate([[math.inf], np.minimum.accumulate(least)[:-1]])
        chosen.append(own[least < SLACK * before])
    return np.concatenate(chosen)


def _kind(gpus: IntArray, offloaded: IntArray) -> IntArray:
    return 4 * gpus + offloaded
