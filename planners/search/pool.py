"""Layouts whose memory and time are worked out, and those of them that can still win."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from plimsoll.planners.ground.errors import PlanningStopped
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.ground.stopping import ShouldStop
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import (
    BoolArray,
    Candidates,
    FloatArray,
    IntArray,
    candidates_from_rows,
    concatenate,
)
from plimsoll.planners.layouts.distinct import distinct
from plimsoll.planners.layouts.grid import Cells, Grid, counted
from plimsoll.planners.memory.peak import TIGHT, Needs, excess, have_memory, least_bytes, needs_of, verdicts
from plimsoll.planners.plans import Step
from plimsoll.planners.search.ranking import CLOSE_FRACTION, Ranked, closest, complexity, contenders, kind_of_offload
from plimsoll.planners.timing.activation_traffic import waiting_bytes
from plimsoll.planners.timing.efficiency import efficiency_on
from plimsoll.planners.timing.step import PART_NAMES, StepSeconds, concatenated, step_of, step_seconds, told, untimed

# Arrays of this many layouts stay in a processor's larger caches and bound the search's memory; with fewer the calls of
# Python are paid more often.
LAYOUTS_A_CHUNK = 65_536
# So many layouts take as long to work out as the calls of Python for a grid, however few it has.
LAYOUTS_WORTH_A_CALL = 3072
# Larger than any array of a chunk: three stages of five moments in fp64.
KEPT_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The contenders among one framework's layouts, as a list; `seconds` is infinite where memory does not fit.

    `steps` are the parts of `seconds`. `excess` is as `planners.memory.peak` has it.

    `considered` counts the layouts whose memory was evaluated or too large by the least that they take, `fitting` those
    of them that fit.
    """

    job: Job
    layouts: Candidates
    peaks: FloatArray
    node_host: FloatArray
    excess: FloatArray
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

    def waiting_bytes(self, index: int, step: Step, hardware: Hardware) -> float:
        """Return what of one of the layouts, with its step, waits on a device for its copy to the host at most."""
        one, forward = self.layouts.take([index]), np.array([step.parts.forward])
        efficiency = efficiency_on(self.job.profile.name, hardware)
        return float(waiting_bytes(one, self.job, hardware, efficiency, forward=forward)[0])


@functools.cache
def keep_freed_memory() -> None:
    """Let the allocator keep what a formula's arrays give back for the next ones; once told, it keeps to it.

    glibc asks the kernel for every block above a threshold, and gives it back
    when freed, so that each array's pages are new and touched for the first time;
    once a larger block was freed the threshold is that block's size (mallopt(3),
    M_MMAP_THRESHOLD). Other allocators take no notice.
    """
    np.empty(KEPT_BYTES, dtype=np.uint8)


def evaluated(
    grid: Grid, job: Job, hardware: Hardware, should_stop: ShouldStop, *, only_room: bool = False
) -> Pool | None:
    """Return the contenders among the distinct layouts of a grid; None where it has none.

    With `only_room` the memory of those is left at the least they take that have no room for that.
    `should_stop` is asked before every chunk of layouts; raises `PlanningStopped` once it says so.
    """
    parts = []
    for part in in_chunks(grid, should_stop):
        considered = len(part)
        if only_room:
            part = replace(part, distinct=part.distinct & _could_fit(part, job, hardware)).smallest()
        contenders = _contenders_of(part, job, hardware) if len(part) else none_of(job)
        parts.append(replace(contenders, considered=considered))
    return _one_pool(parts) if parts else None


def in_chunks(grid: Grid, should_stop: ShouldStop, *, stages_apart: bool = True) -> Iterator[Grid]:
    """Yield grids of no more layouts than caches hold, that together have a grid's distinct ones; see `evaluated`."""
    grid = grid.smallest()
    for bases in alike(grid, stages_apart=stages_apart and has_many_of_one_stage(grid)):
        step = max(LAYOUTS_A_CHUNK // math.prod(grid.shape[:-1]), 1)
        for start in range(0, bases.size, step):
            if should_stop():
                raise PlanningStopped
            part = grid.of_bases(bases[start : start + step])
            yield part if part is grid else part.smallest()


def timed(grid: Grid, job: Job, hardware: Hardware) -> Grid:
    """Return the grid with the parts of its layouts' steps known, but for the paging of an optimizer's states."""
    steps = step_seconds(grid.layouts, job, hardware, efficiency_on(job.profile.name, hardware))
    return replace(grid, known={**grid.known, **{name: getattr(steps, name) for name in PART_NAMES}})


def known_steps(grid: Grid) -> StepSeconds:
    """Return the steps of a grid that is `timed`."""
    return StepSeconds(**{name: grid.known[name] for name in PART_NAMES})


def _steps_of(part: Grid, job: Job, hardware: Hardware, peaks: FloatArray) -> StepSeconds:
    """Return the steps of layouts with such peaks, worked out before where they do not depend on those."""
    if part.known and not job.optimizer.paged_to_host:
        return known_steps(part)
    return step_seconds(part.layouts, job, hardware, efficiency_on(job.profile.name, hardware), peaks)


def _could_fit(part: Grid, job: Job, hardware: Hardware) -> BoolArray:
    return least_bytes(part.layouts, job) <= hardware.limit_bytes


def none_of(job: Job) -> Pool:
    """Return a pool without layouts."""
    return Pool(
        job=job,
        layouts=candidates_from_rows([]),
        **dict.fromkeys(("peaks", "node_host", "excess", "verdicts", "seconds"), np.zeros(0)),
        steps=untimed(0),
        considered=0,
        fitting=0,
    )


def has_many_of_one_stage(grid: Grid) -> bool:
    """Return whether the layouts of one stage are worth a call of their own, in which no other stage is worked out."""
    if math.prod(grid.shape) <= LAYOUTS_WORTH_A_CALL:
        return False
    bases = counted(grid.layouts.pipeline_parallel == 1, grid.shape[-1:])
    return bases * math.prod(grid.shape[:-1]) > LAYOUTS_WORTH_A_CALL


def alike(grid: Grid, *, stages_apart: bool = True) -> Iterator[IntArray]:
    """Yield bases that may have much the same ZeRO stages and offload.

    With `stages_apart` those of one stage are apart from those of several, so that it is worked out once. Bases with
    other choices go together where that wastes fewer layouts than one more call costs.
    """
    allowed = grid.cells.any(axis=(0, 1))
    if not stages_apart and math.prod(grid.shape) <= LAYOUTS_WORTH_A_CALL:
        every = np.flatnonzero(allowed.any(axis=0))
        yield from [every] if every.size else []
        return
    kinds = 2 ** np.arange(allowed.shape[0]) @ allowed.astype(np.int64)
    apart = np.broadcast_to(stages_apart & (grid.layouts.pipeline_parallel > 1), (grid.bases,)).astype(np.int64)
    for group in distinct(apart[kinds > 0])[0].tolist():
        yield from _together(kinds, (apart == group) & (kinds > 0), math.prod(grid.shape[:2]))


def _together(kinds: IntArray, own: BoolArray, layouts_each: int) -> Iterator[IntArray]:
    """Yield the bases of similar kinds, sets of choices as bits, each choice having so many layouts."""
    found, place = distinct(kinds[own])
    if found.size == 1:
        yield np.flatnonzero(own)
        return
    counts = np.bincount(place)
    groups: list[list[int]] = []
    union = bases = layouts = 0
    for kind, count in zip(found.tolist(), counts.tolist(), strict=True):
        more = count * layouts_each * kind.bit_count()
        wasted = (union | kind).bit_count() * (bases + count) * layouts_each - layouts - more
        if not groups or wasted > LAYOUTS_WORTH_A_CALL:
            groups.append([])
            union = bases = layouts = 0
        groups[-1].append(kind)
        union, bases, layouts = union | kind, bases + count, layouts + more
    for group in groups:
        yield np.flatnonzero(own & (kinds >= group[0]) & (kinds <= group[-1]))


def _contenders_of(part: Grid, job: Job, hardware: Hardware) -> Pool:
    """Return the layouts of a grid that can still win or, where none fits, those nearest to it; in order."""
    needs = needs_of(part.layouts, job)
    cells = np.flatnonzero(have_memory(needs, hardware) & part.distinct)
    fitting = cells.size
    waiting = np.zeros(1)
    if not fitting:
        over = excess(needs, hardware)
        cells = np.flatnonzero(part.distinct & (over <= over[part.distinct].min() * (1 + CLOSE_FRACTION)))
        cells = cells[np.argsort(part.order(cells))]
        cells = cells[closest(part.take(cells), over.ravel()[cells])]
        steps = untimed(cells.size)
    else:
        every = _steps_of(part, job, hardware, needs.peaks)
        seconds = np.broadcast_to(every.total, part.shape).ravel()[cells]
        found = _at(needs, Cells(cells, part.shape))
        offloaded = Cells(cells, part.shape).of(kind_of_offload(part.layouts))
        gpus = np.broadcast_to(part.layouts.gpus, part.bases)[cells % part.bases]
        waiting = _waiting_bytes(part, every, job, hardware)
        judged = _judged(found, Cells(cells, part.shape).of(waiting), job, hardware)
        cells = cells[contenders(gpus, found.peaks, judged, seconds, offloaded)]
        cells = cells[np.argsort(part.order(cells))]
        steps = every.at_cells(Cells(cells, part.shape))
    kept = _at(needs, Cells(cells, part.shape))
    return Pool(
        job=job,
        layouts=part.take(cells),
        peaks=kept.peaks,
        node_host=kept.node_host,
        excess=excess(kept, hardware),
        verdicts=_judged(kept, Cells(cells, part.shape).of(waiting), job, hardware),
        seconds=steps.total,
        steps=steps,
        considered=len(part),
        fitting=fitting,
    )


def _waiting_bytes(part: Grid, steps: StepSeconds, job: Job, hardware: Hardware) -> FloatArray:
    """Return what waits on each layout's devices for its copy to the host, which no peak counts."""
    efficiency = efficiency_on(job.profile.name, hardware)
    return waiting_bytes(part.layouts, job, hardware, efficiency, forward=steps.forward)


def _judged(needs: Needs, waiting: FloatArray, job: Job, hardware: Hardware) -> FloatArray:
    """Return each layout's verdict; what fits with room but for bytes that may wait for their copies fits tightly."""
    judged = verdicts(needs, job, hardware)
    lacks_room = (waiting > 0) & (needs.peaks + waiting > hardware.limit_bytes)
    return np.where(lacks_room, np.minimum(judged, TIGHT), judged)


def _at(needs: Needs, cells: Cells) -> Needs:
    """Return the needs of some cells of a grid."""
    return Needs(
        peaks=cells.of(needs.peaks), node_host=cells.of(needs.node_host), gpus_on_node=cells.of(needs.gpus_on_node)
    )


def merged(pools: Sequence[Pool]) -> tuple[Pool, ...]:
    """Return one pool a framework and offload target, in the order of first appearance."""
    by_name: dict[tuple[str, str], list[Pool]] = {}
    for pool in pools:
        by_name.setdefault((pool.job.profile.name, pool.job.offload_target), []).append(pool)
    return tuple(_one_pool(some) for some in by_name.values())


def ranked(pools: Sequence[Pool]) -> Ranked:
    """Return the layouts of all pools side by side."""
    some = [pool for pool in pools if len(pool.layouts)] or pools
    return Ranked(
        gpus=np.concatenate([pool.layouts.gpus for pool in some]),
        offload=np.concatenate([pool.layouts.offload for pool in some]),
        activation_offload=np.concatenate([pool.layouts.activation_offload for pool in some]),
        complexity=np.concatenate([complexity(pool.layouts) for pool in some]),
        peaks=np.concatenate([pool.peaks for pool in some]),
        excess=np.concatenate([pool.excess for pool in some]),
        verdicts=np.concatenate([pool.verdicts for pool in some]),
        seconds=np.concatenate([pool.seconds for pool in some]),
    )


def _one_pool(some: Sequence[Pool]) -> Pool:
    """Return the pool of all layouts of one framework's pools."""
    if len(some) == 1:
        return some[0]
    return Pool(
        job=some[0].job,
        layouts=concatenate([pool.layouts for pool in some]),
        peaks=np.concatenate([pool.peaks for pool in some]),
        node_host=np.concatenate([pool.node_host for pool in some]),
        excess=np.concatenate([pool.excess for pool in some]),
        verdicts=np.concatenate([pool.verdicts for pool in some]),
        seconds=np.concatenate([pool.seconds for pool in some]),
        steps=concatenated([pool.steps for pool in some]),
        considered=sum(pool.considered for pool in some),
        fitting=sum(pool.fitting for pool in some),
    )
