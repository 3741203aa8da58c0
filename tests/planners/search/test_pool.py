"""Which bases are given memory together, and which layouts are passed over by the least that they take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from plimsoll.planners.ground.stopping import never
from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.layouts import grid as grids
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.layouts.grid import Grid, grid_of
from plimsoll.planners.search import pool
from plimsoll.planners.search.axes import candidate_grid
from plimsoll.planners.search.rules.every import obey
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import LLAMA_3_70B, llama, question


def grid(stages, allowed, **degrees):
    """Two or more bases along the last axis, ZeRO stages along the one before: which of them are `allowed`."""
    rows = [dict.fromkeys(degrees, 1) | {name: values[place] for name, values in degrees.items()} for place in range(2)]
    layouts = replace(candidates_from_rows(rows), zero_stage=np.array(stages).reshape(-1, 1))
    return Grid(
        layouts=layouts, distinct=np.array(allowed).reshape(1, 1, len(stages), -1), shape=(1, 1, len(stages), 2)
    )


def together(given):
    return [bases.tolist() for bases in pool.alike(given)]


def test_bases_of_other_zero_stages_go_together_where_that_wastes_little():
    assert together(grid([2, 3], [[True, True], [True, False]], data_parallel=[8, 8])) == [[0, 1]]


def test_and_apart_where_it_would_waste_more_than_a_call(monkeypatch):
    monkeypatch.setattr(pool, "LAYOUTS_WORTH_A_CALL", 0)
    apart = together(grid([2, 3], [[True, True], [True, False]], data_parallel=[8, 8]))
    assert sorted(apart) == [[0], [1]]


def test_a_base_that_may_have_nothing_is_left_out():
    assert together(grid([2, 3], [[True, False], [True, False]], data_parallel=[8, 8])) == [[0]]


def test_a_single_stage_is_apart_from_pipelines():
    assert together(grid([3], [[True, True]], pipeline_parallel=[1, 2])) == [[0], [1]]


def test_few_layouts_of_one_stage_are_worked_out_with_those_of_several(monkeypatch):
    mixed = grid([3], [[True, True]], pipeline_parallel=[1, 2])
    assert [chunk.bases for chunk in pool.in_chunks(mixed, never)] == [2]
    monkeypatch.setattr(pool, "LAYOUTS_WORTH_A_CALL", 0)
    assert [chunk.bases for chunk in pool.in_chunks(mixed, never)] == [1, 1]


def test_layouts_timed_before_take_what_they_would_take(monkeypatch):
    asked = question(framework="megatron", gpus=8)
    job = training_job(asked, load_profile("megatron"))
    every = candidate_grid(asked, job, np.array([8]))
    allowed = grid_of(every.layouts, obey(every.layouts, job, every.distinct).allowed)
    fresh, timed = pool.evaluated(allowed, job, asked.hardware, never), pool.timed(allowed, job, asked.hardware)
    monkeypatch.delattr(pool, "step_seconds")
    assert (pool.evaluated(timed, job, asked.hardware, never).seconds == fresh.seconds).all()


@pytest.mark.parametrize(("framework", "sequence_length"), [("fsdp2", 8192), ("megatron", 196_608), ("deepspeed", 512)])
def test_what_is_passed_over_has_no_room(framework: str, sequence_length: int, monkeypatch):
    asked = question(
        framework=framework, model=llama(LLAMA_3_70B), gpus=24, global_batch_size=96, sequence_length=sequence_length
    )
    job = training_job(asked, load_profile(framework))
    every = candidate_grid(asked, job, np.array([24]))
    allowed = grid_of(every.layouts, obey(every.layouts, job, every.distinct).allowed)
    worked_out = []
    needs_of = pool.needs_of
    # However few are passed over.
    monkeypatch.setattr(grids, "FEW_CELLS", 0)
    monkeypatch.setattr(pool, "needs_of", lambda layouts, job: worked_out.append(layouts) or needs_of(layouts, job))
    whole = pool.evaluated(allowed, job, asked.hardware, never)
    of_all, worked_out[:] = sum(np.prod(each.shape) for each in worked_out), []
    some = pool.evaluated(allowed, job, asked.hardware, never, only_room=True)
    assert (some.considered, some.fitting) == (whole.considered, whole.fitting)
    assert sum(np.prod(each.shape) for each in worked_out) < of_all
    if whole.fitting:
        assert np.array_equal(some.peaks, whole.peaks)
        assert np.array_equal(some.seconds, whole.seconds)
    else:
        assert not len(some.layouts)
