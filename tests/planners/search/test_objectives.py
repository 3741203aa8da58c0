import math

import numpy as np
import pytest

from plimsoll.planners.search.gpu_counts import gpu_counts
from plimsoll.planners.search.objectives import has_enough, latest_step_seconds, wants_fewest_gpus
from plimsoll.planners.training.planning import plan_training
from tests.planners.factories import hardware, question

# 100 steps of 64 x 8,192 tokens.
TOKENS = 100 * 64 * 8192


@pytest.mark.parametrize(
    ("objective", "gpus", "fewest"),
    [
        ("throughput", None, True),
        ("throughput", (1, 64), False),
        ("fewest_gpus", (1, 64), True),
        ("cost", None, False),
        ("cost", (1, 64), False),
        ("deadline", (1, 64), True),
    ],
)
def test_who_wants_the_fewest_gpus(objective, gpus, fewest: bool):
    asked = question(gpus=gpus, objective=objective, tokens=TOKENS, deadline_seconds=1.0)
    assert wants_fewest_gpus(asked) is fewest


def test_the_deadline_is_shared_among_the_steps():
    assert latest_step_seconds(question(objective="deadline", tokens=TOKENS, deadline_seconds=500.0)) == 5.0
    assert latest_step_seconds(question(tokens=TOKENS)) == math.inf


@pytest.mark.parametrize(("seconds", "enough"), [(4.9, True), (5.0, True), (5.1, False), (math.inf, False)])
def test_a_search_has_enough_when_something_fits_and_is_in_time(seconds: float, enough: bool):
    asked = question(objective="deadline", tokens=TOKENS, deadline_seconds=500.0)
    assert has_enough(asked, [np.array([seconds, math.inf])]) is enough


def test_without_a_deadline_whatever_fits_is_enough():
    assert has_enough(question(), [np.array([1e9])])
    assert not has_enough(question(), [np.array([math.inf])])


def test_a_range_of_gpus_is_looked_through_as_finely_as_no_number_at_all():
    # 70 billion parameters need no power of two of GPUs.
    tried = {int(count) for batch in gpu_counts(question(gpus=(1, 512), objective="fewest_gpus")) for count in batch}
    assert {1, 7, 8, 24, 40, 512} <= tried


def test_the_ends_of_a_long_range_are_tried_though_they_are_no_whole_nodes():
    tried = {int(count) for batch in gpu_counts(question(gpus=(90, 1001), objective="fewest_gpus")) for count in batch}
    assert {number for number in tried if number % 8} == {90, 1001}


def test_a_long_range_holds_multiples_of_the_degrees_that_are_fixed():
    # Nodes are thinned to powers of two; three stages of eight tensor-parallel ranks need 24, 48, 96 … GPUs.
    (tried,) = gpu_counts(question(gpus=(1, 512), layout={"pipeline_parallel": 3, "tensor_parallel": 8}))
    assert {24, 48, 96, 192, 384} <= set(tried.tolist())


def test_more_gpus_are_tried_until_the_deadline_is_kept():
    base = {"objective": "deadline", "tokens": TOKENS, "hardware": hardware(None), "framework": "megatron"}
    slow = plan_training(question(**base, deadline_seconds=1e9)).plan
    fast = plan_training(question(**base, deadline_seconds=100 * slow.step.seconds / 8)).plan
    assert fast.layout.gpus > slow.layout.gpus
    assert fast.run.seconds <= 100 * slow.step.seconds / 8


def test_cost_looks_beyond_the_fewest_gpus():
    # Two cards hold the job only by recomputing everything, so that eight take less GPU time.
    asked = question(objective="cost", hardware=hardware(None), framework="megatron")
    fewest = plan_training(question(hardware=hardware(None), framework="megatron")).plan
    cheapest = plan_training(asked).plan
    assert cheapest.layout.gpus * cheapest.step.seconds < fewest.layout.gpus * fewest.step.seconds
