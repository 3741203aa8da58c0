"""The comparison on a device: its plans, and its table."""

import pytest

from benchmarks.device.cases import CASES
from benchmarks.device.table import table
from plimsoll.planners.ground.units import GIB
from plimsoll.service.requests.serving import InferRequest
from plimsoll.service.requests.training import TrainRequest


def test_there_are_at_least_twelve_plans_of_names_of_their_own():
    assert len({case.name for case in CASES}) == len(CASES) >= 12


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_plan_is_a_request_that_the_service_takes(case):
    kind = TrainRequest if case.kind == "train" else InferRequest
    assert kind.model_validate(case.on("h100-sxm-80gb"))


def result(peak, *, reserved, error=None, **more):
    measured = {"peak_bytes": peak * GIB, "reserved_bytes": reserved * GIB, **more.pop("measured", {})}
    return {"predicted": {"peak_bytes": 10 * GIB}, "measured": measured, "relative_error": error, **more}


def test_a_line_sets_planned_traced_and_measured_side_by_side():
    row = {
        "name": "8B",
        "trace": result(11, reserved=12),
        "device": result(
            8, reserved=9, error=0.25, device="NVIDIA H100", measured={"nvml": {"process_bytes": 10 * GIB}}
        ),
    }
    told = table([row], "h100")
    assert "Planned for h100; measured on NVIDIA H100." in told
    assert "| 8B | 10.000 | 11.000 | 8.000 | +25.00 % | 12.000 | 9.000 | 10.000 |" in told


def test_a_plan_that_was_refused_or_ran_out_of_memory_says_so():
    rows = [
        {"name": "a", "refusal": "No such card."},
        {"name": "b", "trace": {"refusal": "not traced"}, "device": result(8, reserved=9, out_of_memory={"step": 0})},
    ]
    told = table(rows, "h100")
    assert "| a | No such card. |" in told
    assert "| not traced | 8.000, then out of memory |" in told
