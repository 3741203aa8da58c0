"""A step's time, from its phases'."""

import pytest

from plimsoll.service.worker.proofs.device.clock import phase_seconds, step_seconds
from tests.service.worker.cases import job

PHASES = {"forward": 1.0, "backward": 2.0, "optimizer": 0.5}
PLANNED = {"seconds": 12.0, "parts": {"forward": 3.0, "data_parallel": 0.25, "tensor_parallel": 0.5}}


def test_the_micro_batches_that_did_not_run_take_as_long_as_those_that_did():
    # 4 x (1 + 2) + 0.5
    told = step_seconds(PHASES, job(accumulation_steps=4), PLANNED, moves_data=True)
    assert told["seconds"] == pytest.approx(12.5)
    assert (told["collectives_seconds"], told["collectives_from"]) == (None, "run")


def test_collectives_that_moved_nothing_are_added_by_the_plan_s_model_and_said_so():
    told = step_seconds(PHASES, job(accumulation_steps=1), PLANNED, moves_data=False)
    assert told["computed_seconds"] == pytest.approx(3.5)
    assert told["seconds"] == pytest.approx(3.5 + 0.75)
    assert told["collectives_from"] == "the plan's model"
    assert told["predicted_seconds"] == 12.0


def test_a_phase_takes_the_median_over_steps_and_micro_batches():
    steps = [{"forward": [1.0, 5.0]}, {"forward": [2.0]}]
    assert phase_seconds(steps) == {"forward": 2.0}
