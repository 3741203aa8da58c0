"""What is passed over neither wins nor stands on the front."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from plimsoll.planners.ground.stopping import never
from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.layouts.candidates import COLUMNS
from plimsoll.planners.search import unbeaten
from plimsoll.planners.search.axes import candidate_grid
from plimsoll.planners.search.best import best_of
from plimsoll.planners.search.pool import evaluated, merged, ranked
from plimsoll.planners.search.ranking import pareto_front
from plimsoll.planners.search.rules.every import obey
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import question

ASKED = [
    ("fsdp2", {"gpus": 8, "global_batch_size": 96}),
    ("megatron", {"gpus": 48, "global_batch_size": 480}),
    ("nanotron", {"gpus": 24, "global_batch_size": 360, "sequence_length": 4096}),
    ("deepspeed", {"gpus": 12, "global_batch_size": 60, "layout": {"offload": "optimizer"}}),
    ("megatron", {"gpus": 40, "global_batch_size": 15_360, "sequence_length": 512, "recompute": None}),
]


def allowed_grid(asked, job):
    grid = candidate_grid(asked, job, np.array([asked.hardware.gpus.minimum]))
    return replace(grid, distinct=obey(grid.layouts, job, grid.distinct).allowed)


def told(pool, index):
    layouts = {name: getattr(pool.layouts, name)[index].item() for name in COLUMNS}
    return layouts, float(pool.seconds[index]), float(pool.peaks[index])


@pytest.mark.parametrize("layouts_at_once", [1, 3072])
@pytest.mark.parametrize(("framework", "changes"), ASKED)
def test_the_best_and_the_front_are_those_of_all(framework, changes, layouts_at_once, monkeypatch):
    monkeypatch.setattr(unbeaten, "LAYOUTS_AT_FIRST", layouts_at_once)
    monkeypatch.setattr(unbeaten, "LAYOUTS_WORTH_A_CALL", layouts_at_once)
    asked = question(framework=framework, **changes)
    job = training_job(asked, load_profile(framework))
    grid = allowed_grid(asked, job)
    every = evaluated(grid, job, asked.hardware, never)
    bounded = unbeaten.bounded(grid, job, asked.hardware, never)
    found, best = unbeaten.unbeaten(bounded, asked, [], None, never)
    (some,) = merged(found)
    assert some.considered == every.considered == len(grid)
    assert some.fitting <= every.fitting
    of_every, of_some = best_of(asked, [every]), best_of(asked, [some])
    assert (best.objective, best.complexity) == (of_some.objective, of_some.complexity)
    assert (of_every.objective, of_every.complexity, of_every.has_room) == (
        of_some.objective,
        of_some.complexity,
        of_some.has_room,
    )
    fronts = [[told(pool, index) for index in pareto_front(ranked([pool]))] for pool in (every, some)]
    assert fronts[0] == fronts[1]


def test_a_framework_that_another_one_beats_is_given_no_memory():
    asked = question(framework="megatron", gpus=48, global_batch_size=480)
    job = training_job(asked, load_profile("megatron"))
    bounded = unbeaten.bounded(allowed_grid(asked, job), job, asked.hardware, never)
    known, best = unbeaten.unbeaten(bounded, asked, [], None, never)
    slower = replace(bounded, seconds=2 * bounded.seconds, bytes=bounded.bytes + asked.hardware.limit_bytes)
    (passed_over,), still = unbeaten.unbeaten(slower, asked, known, best, never)
    assert still is best
    assert (len(passed_over.layouts), passed_over.considered) == (0, slower.considered)


def test_a_grid_without_layouts_has_no_bounds():
    asked = question(framework="fsdp2", gpus=8)
    job = training_job(asked, load_profile("fsdp2"))
    grid = allowed_grid(asked, job)
    assert unbeaten.bounded(replace(grid, distinct=np.zeros(grid.shape, bool)), job, asked.hardware, never) is None
