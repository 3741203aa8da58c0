from __future__ import annotations

from typing import Any

from benchmarks.accuracy.asking import Refused
from benchmarks.famous_runs.asking import Planned, asked_runs, open_request, own_launch_file
from tests.benchmarks.famous_runs.records import a_run


def test_an_open_request_keeps_the_job_and_fixes_nothing_of_its_layout():
    request = {**a_run().request, "training": {**a_run().request["training"], "kernels": "fused"}}
    found = open_request(request, "any")
    assert (found["framework"], found["layout"]) == ("any", {})
    assert found["training"] == {"precision": "bf16-mixed", "sequence_length": 1000, "global_batch_size": 4}
    assert open_request(request, "megatron")["training"]["kernels"] == "fused"


def one(**layout: Any) -> Any:
    request = dict(a_run().request)
    request["layout"] = {**request["layout"], **layout}
    (found,) = asked_runs([a_run(request=request)])
    return found


def test_a_run_is_planned_as_it_ran_and_open():
    found = one()
    assert isinstance(found.as_ran, Planned)
    assert found.as_ran.layout["tensor_parallel"] == 4
    assert found.as_ran.low_seconds < found.as_ran.step_seconds < found.as_ran.high_seconds
    assert found.published_seconds == 2.0
    assert found.open_layout.step_seconds <= found.as_ran.step_seconds


def test_a_field_that_is_none_is_refused_and_the_open_questions_are_answered():
    found = one(half_a_stage=1)
    assert isinstance(found.as_ran, Refused)
    assert found.as_ran.code == "invalid-request"
    assert "half_a_stage is not a field here" in " ".join(found.as_ran.reasons)
    assert isinstance(found.open_framework, Planned)


def test_a_layout_that_cannot_be_is_refused_with_every_reason():
    # Three tensor-parallel ranks divide neither 8 GPUs nor 32 heads.
    found = one(tensor_parallel=3, data_parallel=1)
    assert (found.as_ran.code, len(found.as_ran.reasons) > 0) == ("impossible-layout", True)


def test_torchtitans_file_is_that_of_fsdp2():
    assert (own_launch_file("fsdp2"), own_launch_file("megatron")) == ("torchtitan", "megatron")
