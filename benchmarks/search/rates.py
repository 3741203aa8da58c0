"""One search in a fresh process: layouts, clock and processor seconds, and the memory it adds."""

from __future__ import annotations

import multiprocessing
import statistics
import time
import tracemalloc
from dataclasses import dataclass

from benchmarks.search.cases import Case
from plimsoll.planners.ground.errors import ImpossibleLayout
from plimsoll.planners.jobs.abilities import why_unsupported
from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.search.search import search
from plimsoll.planners.stacks.profile import profiles_to_search


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What a search did, in medians over its repetitions; `fastest_seconds` is the least processor time.

    On a machine that others use too the fastest says most of the code: what is
    more was spent waiting for caches and cores. `extra_bytes` is the most that the
    search held at once of what it allocated itself.
    """

    layouts: int
    fitting: int
    wall_seconds: float
    cpu_seconds: float
    fastest_seconds: float
    extra_bytes: int


def search_rate(case: Case, repetitions: int) -> Rate | None:
    """Return the rate of a case, or None where no layout of it can exist."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measured, (case, repetitions))


def measured(case: Case, repetitions: int) -> Rate | None:
    """Time the case in this process; the first search counts for memory alone."""
    question = case.question()
    jobs = [
        training_job(question, profile)
        for profile in profiles_to_search(case.framework)
        if why_unsupported(question, profile) is None
    ]
    tracemalloc.start()
    try:
        found = search(question, jobs)
    except ImpossibleLayout:
        return None
    _, extra = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    walls, cpus = [], []
    for _ in range(repetitions):
        wall, cpu = time.perf_counter(), time.process_time()
        search(question, jobs)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return Rate(
        layouts=found.considered,
        fitting=found.fitting,
        wall_seconds=statistics.median(walls),
        cpu_seconds=statistics.median(cpus),
        fastest_seconds=min(cpus),
        extra_bytes=extra,
    )
