"""Tests of the numbers of GPUs that are offered."""

from __future__ import annotations

import dataclasses

import pytest

from plimsoll.planners.serving.advice.more_gpus import Goal, fewest_gpus, freed
from plimsoll.planners.serving.search.search import search_fleet
from tests.planners.serving.factories import hardware, question


def fewest(least, *, now=1, objective="throughput", gpus_per_node=8):
    """Return how many GPUs are found where `least` of them are what is looked for."""
    asked = question(hardware=hardware(now, gpus_per_node=gpus_per_node), objective=objective)
    goal = Goal(
        plan=lambda changed: search_fleet((changed,)).candidates[0],
        accepts=lambda found: found.gpus >= least,
        promise="are as many",
    )
    found = fewest_gpus(asked, goal)
    return None if found is None else found.found.gpus


@pytest.mark.parametrize(
    ("least", "found"), [(2, 2), (3, 4), (5, 8), (9, 16), (17, 24), (26, 32), (32, 32), (33, None)]
)
def test_gpus_are_offered_as_machines_come_and_no_more_than_32_times_as_many(least, found):
    assert fewest(least) == found


def test_whole_nodes_are_those_of_the_machine():
    assert fewest(9, now=3, gpus_per_node=4) == 12


def test_a_number_between_two_machines_goes_on_to_the_next():
    assert fewest(8, now=7) == 8


def test_degrees_and_pools_are_left_to_the_search():
    asked = question(layout={"tensor_parallel": 2, "decode_context_parallel": 2})
    assert freed(asked) == dataclasses.replace(asked, layout=dataclasses.replace(asked.layout, tensor_parallel=None))
