"""A deadline that is to be kept with failures: the search asks for as much earlier as failures cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.objectives import run_steps
from plimsoll.planners.search.search import Found
from plimsoll.planners.training.run import goodput_of

# More GPUs fail more often, by little: the second or third earlier deadline is kept, or no number of GPUs keeps any.
MOST_TIGHTENED = 4


def in_time_with_failures(question: TrainingQuestion, search: Callable[[TrainingQuestion], Found]) -> Found:
    """Return what `search` finds, of those that keep the deadline what keeps it with failures too, if anything does.

    A plan that keeps it only without failures gives way to the fewest GPUs that do better.
    """
    first = found = search(question)
    steps, deadline = run_steps(question), question.deadline_seconds
    if question.objective != "deadline" or steps is None or deadline is None:
        return first
    latest = deadline
    for _ in range(MOST_TIGHTENED):
        pool, index = found.pools[found.chosen[0]], found.chosen[1]
        alone = steps * float(pool.seconds[index])
        if not found.fits or alone > latest:
            return first
        kept = goodput_of(question, pool.job, int(pool.layouts.gpus[index]), float(pool.seconds[index]))
        if kept is None or alone <= deadline * kept:
            return first if kept is None else found
        latest = deadline * kept
        found = search(replace(question, deadline_seconds=latest))
    return first
