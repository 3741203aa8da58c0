"""Level `device` of a training plan: the verdict, and what is measured beside what was predicted."""

import pytest

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.ground.errors import NoSuitableDevice
from plimsoll.service.worker.devices.device import Device
from plimsoll.service.worker.proofs.device.task import device_result
from plimsoll.service.worker.proofs.device.where import Ranks
from plimsoll.service.worker.proofs.task import run
from plimsoll.service.worker.stacks.found import find_stack
from tests.service.worker.cases import config, job, request

# One rank alone, so that no other process is started.
ALONE = {"data_parallel": 1, "shard_group": 1, "gpus": 1, "gradient_accumulation_steps": 1}


def ran(**changes):
    return run(request("device", layout=ALONE | changes.pop("layout", {}), **changes), lambda *_progress: None)


def test_a_plan_that_predicts_what_was_run_is_consistent():
    measured = ran(allocated_bytes=1)["measured"]["peak_bytes"]
    result = ran(allocated_bytes=measured)
    assert (result["level"], result["verdict"], result["relative_error"]) == ("device", "consistent", 0.0)
    assert result["measured"]["peak_bytes"] == result["ranks"][0]["peak_bytes"]
    assert result["environment"]["type"] == "cpu"
    assert result["step"]["collectives_from"] == "the plan's model"
    assert any("One rank ran at a time" in note for note in result["notes"])


def test_a_plan_that_predicts_another_figure_is_refuted_with_both():
    result = ran(allocated_bytes=1)
    assert result["verdict"] == "refuted"
    assert result["relative_error"] == pytest.approx(1 / result["measured"]["peak_bytes"] - 1)


def test_each_stage_of_a_pipeline_that_may_decide_is_run_alone():
    parts = [{"stage": number, "layers": [number, number], "peak_bytes": 1} for number in range(2)]
    result = ran(stages=parts, layout={"pipeline_parallel": 2, "gpus": 2, "gradient_accumulation_steps": 4})
    assert [rank["stage"] for rank in result["ranks"]] == [0, 1]
    assert result["step"] is None


def test_a_card_of_the_plan_s_kind_is_waited_for_and_not_replaced():
    asked = request("device", layout=ALONE) | {"device": {"on": "gpu", "any_gpu_kind": False}}
    with pytest.raises(NoSuitableDevice):
        run(asked, lambda *_progress: None)


def test_a_plan_larger_than_the_worker_s_memory_is_no_question_for_it():
    with pytest.raises(NoSuitableDevice, match="GiB"):
        ran(allocated_bytes=1 << 50)


@pytest.mark.parametrize(
    ("training", "layout"),
    [
        ({"method": "qlora"}, {}),
    ],
)
def test_what_is_traced_by_shape_alone_is_not_run(training, layout):
    with pytest.raises(NotYetAvailable, match="by shape"):
        ran(training=training, layout=layout)


def judged(*, out_of_memory, is_planned_kind=True, peak_bytes=0, limit_bytes=100, framework="ddp"):
    account = {
        "rank": 0, "stage": 0, "peak_bytes": 60, "reserved_bytes": 80, "items": {}, "kinds": {}, "held": {},
        "kept_for_backward_bytes": 0, "phases": [], "timeline": [], "peak_phase": "forward", "peak_step": 0,
        "largest_live": [], "phase_seconds": {}, "counted_by": "torch.cuda.memory_stats",
        "out_of_memory": out_of_memory,
    }  # fmt: skip
    wanted = job(framework=framework, data_parallel=1, zero_stage=0, config=config())
    card = Device(type="cpu", name="card", memory_bytes=100, count=1, is_planned_kind=is_planned_kind)
    memory = {"allocated_bytes": 60, "peak_bytes": peak_bytes, "limit_bytes": limit_bytes, "items": {"runtime": 10}}
    ranks = Ranks(processes=1, memory_bytes=None)
    return device_result(wanted, find_stack(framework), card, ranks, [account], {"memory": memory})


FAILURE = {"wanted_bytes": 50, "peak_bytes_so_far": 60}


def test_out_of_memory_refutes_a_plan_that_was_to_fit():
    result = judged(out_of_memory=FAILURE, peak_bytes=90)
    assert (result["verdict"], result["relative_error"], result["out_of_memory"]) == ("refuted", None, FAILURE)


def test_out_of_memory_confirms_a_plan_that_was_not_to_fit_on_its_own_card_alone():
    assert judged(out_of_memory=FAILURE, peak_bytes=110)["verdict"] == "confirmed"
    assert judged(out_of_memory=FAILURE, peak_bytes=110, framework="accelerate")["verdict"] == "consistent"
    # Another card has other memory: it was asked only because the plan would fit there.
    assert judged(out_of_memory=FAILURE, peak_bytes=110, is_planned_kind=False)["verdict"] == "refuted"


def test_the_stack_s_own_code_on_the_plan_s_own_card_confirms():
    assert judged(out_of_memory=None)["verdict"] == "confirmed"
    assert judged(out_of_memory=None, is_planned_kind=False)["verdict"] == "consistent"


def test_a_run_whose_bytes_pass_the_limit_with_the_runtime_s_refutes_the_plan():
    # 60 measured and 10 of the runtime pass 69.
    assert judged(out_of_memory=None, peak_bytes=69, limit_bytes=69)["verdict"] == "refuted"
    assert judged(out_of_memory=None, peak_bytes=69, limit_bytes=70)["verdict"] == "confirmed"
