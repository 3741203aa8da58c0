"""The best layout found so far, as a bound on what is still worth looking at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.layouts.candidates import BoolArray, FloatArray, IntArray
from plimsoll.planners.layouts.distinct import distinct
from plimsoll.planners.memory.peak import FITS, TIGHT, UNSURE
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.objectives import latest_step_seconds, objective_of, wants_fewest_gpus
from plimsoll.planners.search.pool import Pool, ranked
from plimsoll.planners.search.ranking import NEAR_EQUAL_FRACTION, ROUNDING_FRACTION, best_and_fastest, parts_that_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best layout so far; `fitting_counts` are the numbers of GPUs on which anything fits that could go before it.

    `objective` is what the question's objective makes of its step (`objectives.objective_of`), `fastest` the least of
    those that it could have been, and `complexity` how many moving parts it has; `has_room` says that it
    fits with room that no states on the host bought, `is_offloaded` that it keeps those there, and
    `activations_offloaded` activations, although nobody asked for it.
    """

    question: TrainingQuestion
    gpus: int
    objective: float
    fastest: float
    complexity: float
    is_late: bool
    has_room: bool
    is_offloaded: bool
    activations_offloaded: bool
    fitting_counts: IntArray

    @property
    def is_enough(self) -> bool:
        """Return whether it has room on the device and is in time, so that no unmeasured stack is asked."""
        return self.has_room and not self.is_late

    def leaves_open(self, counts: IntArray) -> bool:
        """Return whether a layout of less memory could go before it, however slow, on some of the GPU counts."""
        fewer = wants_fewest_gpus(self.question) and bool((counts < self.gpus).any())
        return fewer or not self.has_room or self.activations_offloaded

    def could_lose_to(self, gpus: IntArray, seconds: FloatArray, complexity: FloatArray) -> BoolArray:
        """Return where a layout of so many GPUs, seconds and, at the least, moving parts goes before it, if it fits.

        A near equal does that if it is simpler, or as simple and no slower. Everything that has more room is taken to
        be among what was found already.
        """
        objective = objective_of(self.question, gpus, seconds)
        is_near = objective <= self.objective * (1 + NEAR_EQUAL_FRACTION + ROUNDING_FRACTION)
        parts, no_slower = parts_that_count(complexity, self.question), self.objective * (1 + ROUNDING_FRACTION)
        is_simpler = (parts < self.complexity) | ((parts == self.complexity) & (objective <= no_slower))
        near: BoolArray = (objective <= self.fastest * (1 + ROUNDING_FRACTION)) | (is_near & is_simpler)
        if not wants_fewest_gpus(self.question):
            return near
        is_in_time = (seconds <= latest_step_seconds(self.question)) & np.isin(gpus, self.fitting_counts)
        could: BoolArray = is_in_time & ((gpus < self.gpus) | ((gpus == self.gpus) & near))
        return near | is_in_time if self.is_late else could


def best_of(question: TrainingQuestion, pools: Sequence[Pool]) -> Best | None:
    """Return the best of several pools; None where nothing fits."""
    if not any(pool.fitting for pool in pools):
        return None
    found = ranked(pools)
    index, fastest = best_and_fastest(found, question)
    gpus, seconds = found.gpus, found.seconds
    is_late = bool(seconds[index] > latest_step_seconds(question))
    # What may lack the host memory goes before nothing that is sure to have it, unless that is late.
    least = UNSURE if is_late else min(TIGHT, found.verdicts[index])
    is_offloaded = bool(found.offload[index] > 0 and question.layout.offload is None)
    return Best(
        question=question,
        gpus=int(gpus[index]),
        objective=float(objective_of(question, gpus[index], seconds[index])),
        fastest=fastest,
        complexity=float(parts_that_count(found.complexity[[index]], question)[0]),
        is_late=is_late,
        has_room=bool(found.verdicts[index] == FITS and not is_offloaded),
        is_offloaded=is_offloaded,
        activations_offloaded=bool(found.activation_offload[index]) and not question.activation_offload,
        fitting_counts=distinct(gpus[found.verdicts >= least])[0],
    )
