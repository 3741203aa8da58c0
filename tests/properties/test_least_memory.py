"""What a layout takes at the least, by which the search passes layouts over: never more than what its step takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from plimsoll.planners.ground.terms import PIPELINE_SCHEDULES
from plimsoll.planners.layouts.grid import Grid
from plimsoll.planners.memory.peak import least_bytes, peak_bytes
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.able import jobs_of, problems
from plimsoll.planners.search.axes import choices_of, grid_over, offload_choices
from plimsoll.planners.search.bases import (
    every_mesh,
    only,
    with_micro_batches,
    with_shard_groups,
    with_stages,
)
from plimsoll.planners.search.pool import alike
from plimsoll.planners.search.rules.every import obey
from plimsoll.planners.stacks.profile import load_profile
from tests.properties.laws import law
from tests.properties.trainings import STACKS, questions

BASES, ROUNDING = 64, 1e-12


def grid_of_some(draw: st.DrawFn, asked: TrainingQuestion) -> Grid:
    """Some bases of a job with everything that may be chosen on them, as far as rules allow it."""
    (job,) = jobs_of(asked)
    gpus = np.array([asked.hardware.gpus.minimum])
    bases = with_shard_groups(
        with_stages(with_micro_batches(every_mesh(asked, job, gpus), asked), asked, job), asked, job
    )
    count = bases["gpus"].size
    assume(count)
    seed = draw(st.integers(0, 2**32 - 1))
    some = np.random.default_rng(seed).choice(count, size=min(BASES, count), replace=False)
    choices = replace(choices_of(asked, job), offload=offload_choices(asked, job.profile.can))
    grid = grid_over(asked, job, only(bases, np.sort(some)), choices)
    return replace(grid, distinct=obey(grid.layouts, job, grid.distinct).allowed)


@law(few=40, many=2000)
@given(st.data())
def test_no_layout_takes_less_than_the_least(data: st.DataObject) -> None:
    stack = data.draw(st.sampled_from(STACKS))
    asked = data.draw(questions(stack))
    schedule = data.draw(st.sampled_from((None, *PIPELINE_SCHEDULES)))
    asked = replace(asked, layout=replace(asked.layout, pipeline_schedule=schedule))
    assume(not problems(asked, load_profile(stack)))
    grid = grid_of_some(data.draw, asked)
    (job,) = jobs_of(asked)
    for bases in alike(grid):
        part = grid.of_bases(bases).smallest()
        least, peaks = least_bytes(part.layouts, job), peak_bytes(part.layouts, job)
        # The same sums in another order may differ in their last bits.
        assert ((least <= peaks * (1 + ROUNDING)) | ~part.distinct).all()
