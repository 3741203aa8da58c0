"""Sets of recomputed modules as an axis of layouts: each takes beside others what it takes alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.search.cases import described
from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.layouts.candidates import SELECTIVE, layout_of
from plimsoll.planners.layouts.grid import Grid
from plimsoll.planners.memory.peak import least_bytes, needs_of
from plimsoll.planners.questions import Recompute
from plimsoll.planners.search.axes import choices_of, grid_over
from plimsoll.planners.search.bases import every_mesh, only, with_micro_batches, with_shard_groups, with_stages
from plimsoll.planners.search.rules.every import obey
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.planners.timing.efficiency import load_efficiency
from plimsoll.planners.timing.step import step_seconds
from tests.planners.factories import question, small_llama, small_mixtral

# Dense under eager attention, whose scores are a module; a mixture; latent attention and shared experts.
MODELS = [
    (small_llama(), {"attention": "eager", "gpus": 8}),
    (small_mixtral(), {"gpus": 16}),
    (described("deepseek-ai/DeepSeek-V3"), {"gpus": 128}),
]


def megatron(model, **changes):
    asked = question(framework="megatron", model=model, global_batch_size=256, **changes)
    return asked, training_job(asked, load_profile("megatron"))


def some_bases(asked, job):
    every = with_stages(
        with_micro_batches(every_mesh(asked, job, np.array([asked.hardware.gpus.minimum])), asked), asked, job
    )
    few = np.linspace(0, every["gpus"].size - 1, 40).astype(int)
    return with_shard_groups(only(every, few), asked, job)


def quantities(grid: Grid, job, asked):
    allowed = obey(grid.layouts, job, grid.distinct).allowed
    found = (
        needs_of(grid.layouts, job).peaks,
        least_bytes(grid.layouts, job),
        step_seconds(grid.layouts, job, asked.hardware, load_efficiency("megatron")).total,
    )
    return allowed, [np.broadcast_to(each, grid.shape) for each in found]


@pytest.mark.parametrize(("model", "changes"), MODELS)
def test_each_set_takes_beside_others_what_it_takes_where_it_is_asked_for(model, changes):
    asked, job = megatron(model, **changes)
    numbers = tuple(range(1, len(job.module_sets)))
    assert numbers
    choices, bases = replace(choices_of(asked, job), fused_cross_entropy=(False,)), some_bases(asked, job)
    beside = grid_over(asked, job, bases, replace(choices, recompute=((SELECTIVE, 1.0),), module_sets=numbers))
    allowed, together = quantities(beside, job, asked)
    assert allowed.any()
    for number in numbers:
        own, alone_job = megatron(
            model, **changes, recompute=Recompute(mode="selective", modules=job.module_sets[number])
        )
        alone = grid_over(own, alone_job, bases, replace(choices, recompute=((SELECTIVE, 1.0),)))
        alone_allowed, each = quantities(alone, alone_job, own)
        here = alone_allowed[:, 0]
        assert (allowed[:, number] == here).all()
        for whole, part in zip(together, each, strict=True):
            assert np.array_equal(whole[:, number][here], part[:, 0][here])


def test_a_layout_says_which_modules_it_recomputes():
    asked, job = megatron(small_mixtral(), gpus=16)
    bases = some_bases(asked, job)
    grid = grid_over(asked, job, bases, replace(choices_of(asked, job), recompute=(), module_sets=(2, 1)))
    listed = grid.every()
    told = {layout_of(listed, index, job).recompute_modules for index in range(len(listed))}
    assert told == {job.module_sets[1], job.module_sets[2]}


def test_who_says_what_is_recomputed_leaves_no_set_to_choose():
    _, job = megatron(small_mixtral(), gpus=16, recompute=Recompute(mode="selective", modules=("mlp",)))
    assert job.module_sets == (("mlp",),)
