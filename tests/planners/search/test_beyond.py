"""The bounds of meshes, before they have micro-batches and stages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.memory.peak import have_memory, needs_of
from plimsoll.planners.search import beyond
from plimsoll.planners.search.axes import grid_over
from plimsoll.planners.search.bases import only, with_micro_batches, with_shard_groups, with_stages
from plimsoll.planners.search.rules.every import obey
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import LLAMA_3_70B, llama, question, small_mixtral


def least_of_each(everything, asked, *, staged: bool):
    """Return the least of each mesh by its every micro-batch and, if asked, by all of its stages."""
    sized = with_micro_batches({**everything.meshes, "number": np.arange(len(everything))}, asked)
    if staged:
        sized = with_stages(sized, asked, everything.job)
    number = sized.pop("number")
    least = np.full(len(everything), np.inf)
    np.minimum.at(least, number, beyond._least_seconds(everything, sized))
    return least


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize(
    ("framework", "model", "gpus", "batch"),
    [
        ("megatron", llama(LLAMA_3_70B), 96, 960),
        ("fsdp2", llama(LLAMA_3_70B), 40, 15_360),
        ("nanotron", llama(LLAMA_3_70B), 24, 120),
        ("megatron", small_mixtral(), 48, 480),
        ("fsdp2", small_mixtral(), 24, 96),
    ],
)
def test_no_micro_batch_and_no_stages_are_faster_than_the_bound_of_a_mesh(framework, model, gpus, batch, staged):
    asked = question(framework=framework, model=model, gpus=gpus, global_batch_size=batch)
    job = training_job(asked, load_profile(framework))
    everything = beyond.beyond_usual(asked, job, np.array([gpus]), with_offload=False)
    bound = beyond._least_of_meshes(everything)
    least = least_of_each(everything, asked, staged=staged)
    assert np.isfinite(bound).any()
    assert (bound <= least * (1 + 1e-12)).all()


@pytest.mark.parametrize("turn", ["usual", "every number of layers", "modules"])
@pytest.mark.parametrize(
    ("framework", "model", "gpus"),
    [("megatron", llama(LLAMA_3_70B), 8), ("megatron", small_mixtral(), 4), ("fsdp2", llama(LLAMA_3_70B), 6)],
)
def test_layouts_that_are_timed_together_have_the_least_of_those_timed_alone(framework, model, gpus, turn):
    asked = question(framework=framework, model=model, gpus=gpus, global_batch_size=12 * gpus)
    job = training_job(asked, load_profile(framework))
    everything = beyond.beyond_usual(asked, job, np.array([gpus]), with_offload=True)
    choices = {
        "usual": everything.choices,
        "every number of layers": replace(everything.choices, recompute=(), full_layers=(1, 2)),
        "modules": replace(everything.choices, recompute=(), module_sets=tuple(range(len(job.module_sets)))),
    }
    everything = replace(everything, choices=choices[turn])
    sized = with_micro_batches(everything.meshes, asked)
    bases = with_shard_groups(with_stages(sized, asked, job), asked, job)
    together = beyond._timed(everything, beyond._grid_of_groups(everything, bases))
    assert (beyond._seconds_of_timed(everything, together) == beyond._seconds(everything, bases)).all()


@pytest.mark.parametrize("offload", [((1, False),), ((0, True),)])
def test_layouts_whose_fastest_choices_were_ruled_out_say_nothing_of_those(offload):
    asked = question(framework="megatron", gpus=8, global_batch_size=8)
    job = training_job(asked, load_profile("megatron"))
    everything = beyond.beyond_usual(asked, job, np.array([8]), with_offload=False)
    everything = replace(everything, choices=replace(everything.choices, offload=offload))
    bases = with_shard_groups(with_stages(with_micro_batches(everything.meshes, asked), asked, job), asked, job)
    assert beyond._seconds_of_timed(everything, beyond._grid_of_groups(everything, bases)) is None


@pytest.mark.parametrize(
    ("framework", "model", "gpus", "batch", "with_offload"),
    [
        ("megatron", llama(LLAMA_3_70B), 24, 48, False),
        ("fsdp2", llama(LLAMA_3_70B), 24, 96, False),
        ("fsdp2", llama(LLAMA_3_70B), 6, 96, True),
        ("deepspeed", llama(LLAMA_3_70B, num_hidden_layers=61), 20, 60, False),
        ("nanotron", llama(LLAMA_3_70B), 40, 120, False),
    ],
)
def test_no_layout_of_a_base_without_room_fits(framework, model, gpus, batch, with_offload):
    asked = question(framework=framework, model=model, gpus=gpus, global_batch_size=batch)
    job = training_job(asked, load_profile(framework))
    everything = beyond.beyond_usual(asked, job, np.array([gpus]), with_offload=with_offload)
    staged = with_stages(with_micro_batches(everything.meshes, asked), asked, job)
    staged["number"] = np.arange(staged["gpus"].size)
    kept = beyond._with_room(everything, staged).pop("number")
    left = np.setdiff1d(staged.pop("number"), kept)
    assert kept.size
    assert left.size
    grouped = with_shard_groups(only(staged, left), asked, job)
    grid = grid_over(asked, job, grouped, everything.choices)
    listed = replace(grid, distinct=obey(grid.layouts, job, grid.distinct).allowed).every()
    assert not have_memory(needs_of(listed, job), asked.hardware).any()


def drives(*, rate: float | None = 3e9, with_offload: bool = True, framework: str = "deepspeed", **layout):
    asked = question(framework=framework, gpus=8, layout=layout)
    asked = replace(asked, hardware=replace(asked.hardware, nvme_bytes_per_second=rate))
    job = training_job(asked, load_profile(framework))
    return beyond.on_drives(beyond.beyond_usual(asked, job, np.array([8]), with_offload=with_offload))


def test_states_go_to_drives_in_the_stage_that_swaps_and_with_something_moved():
    on_drives = drives()
    assert on_drives.job.offload_target == "nvme"
    assert on_drives.choices.zero_stages == (3,)
    assert [states for states, _ in on_drives.choices.offload] == [1, 2]


@pytest.mark.parametrize(
    "refused",
    [
        {"rate": None},
        {"with_offload": False},
        {"framework": "fsdp2"},
        {"zero_stage": 2},
        {"offload": "none"},
        {"offload": "optimizer", "offload_target": "cpu"},
    ],
)
def test_drives_are_no_choice_unless_nodes_have_them_and_the_request_leaves_them_open(refused):
    assert drives(**refused) is None
