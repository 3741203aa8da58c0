"""What depends on which of a job's sets of modules layouts recompute, worked out once for each set that they have."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from plimsoll.planners.layouts.candidates import Candidates, FloatArray
from plimsoll.planners.layouts.distinct import distinct


def module_sets(layouts: Candidates) -> list[int]:
    """Return the places of the sets that some layout has (`Job.module_sets`), rising."""
    chosen = layouts.module_set
    return [chosen.item()] if chosen.size == 1 else list(distinct(chosen)[0].tolist())


def by_module_set(layouts: Candidates, of_set: Callable[[int], FloatArray]) -> FloatArray:
    """Return for each layout what `of_set` gives for its own set."""
    first, *others = module_sets(layouts)
    result = of_set(first)
    for number in others:
        result = np.where(layouts.module_set == number, of_set(number), result)
    return result
