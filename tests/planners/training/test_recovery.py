from dataclasses import replace

import pytest

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.plans import Recovery
from plimsoll.planners.questions import Resilience
from plimsoll.planners.timing.efficiency import load_efficiency
from plimsoll.planners.training.planning import plan_training
from plimsoll.planners.training.recovery import Failing, host_copy_seconds, node_range, recoveries
from tests.planners.factories import hardware, question

LAYOUT = replace(
    plan_training(question(framework="fsdp2")).plan.layout,
    data_parallel=8,
    tensor_parallel=1,
    pipeline_parallel=1,
    zero_stage=0,
    shard_group=8,
)
FAILING = Failing(
    checkpoint_bytes=10**11,
    storage_seconds=100.0,
    restart_seconds=600.0,
    mean_between_failures=36_000.0,
    step_seconds=2.0,
)


def ways(layout=LAYOUT, elastic=(8, 16, 32), failing=FAILING) -> dict[str, Recovery]:
    found = recoveries(layout, elastic, hardware(8), load_efficiency("fsdp2"), failing)
    return {way.name: way for way in found}


def test_a_checkpoint_goes_to_the_host_in_as_many_parts_as_ranks_hold_it():
    # 10^11 bytes over PCIe at 64 GB/s x 0.80; sharded over eight ranks an eighth of it each.
    efficiency = load_efficiency("fsdp2")
    assert host_copy_seconds(LAYOUT, hardware(8), efficiency, 10**11) == pytest.approx(1e11 / 51.2e9)
    sharded = replace(LAYOUT, zero_stage=3)
    assert host_copy_seconds(sharded, hardware(8), efficiency, 10**11) == pytest.approx(1e11 / 8 / 51.2e9)


def test_copies_in_host_memory_leave_more_time_than_storage():
    found = ways()
    assert found["torchrun"].goodput < found["dlrover"].goodput
    assert found["torchrun"].goodput < found["horovod-elastic"].goodput
    assert found["dlrover"].interval_seconds < found["torchrun"].interval_seconds


def test_what_a_failure_costs_is_restart_and_reading():
    found = ways()
    assert found["torchrun"].recovery_seconds == 700.0
    # A lost host takes its copy along: the stored one is read, and is as much older as storing takes.
    assert found["dlrover"].recovery_seconds == 800.0


@pytest.mark.parametrize("divided", [{"zero_stage": 1}, {"tensor_parallel": 2, "data_parallel": 4}])
def test_horovod_needs_the_whole_state_on_every_rank(divided):
    way = ways(replace(LAYOUT, **divided))["horovod-elastic"]
    assert (way.possible, way.goodput, way.interval_seconds) == (False, None, None)
    assert "divides it" in way.restarts


def test_no_interval_is_shorter_than_a_step():
    # √(2 x 1.95 s x 36,000 s) is 375 s; steps of 1,000 s are longer.
    found = ways(failing=replace(FAILING, step_seconds=1000.0))
    assert found["horovod-elastic"].interval_seconds == 1000.0
    assert found["torchrun"].interval_seconds > 1000.0


def test_commands_name_the_nodes_on_which_the_batch_stays():
    found = ways(elastic=(8, 16, 24))
    assert "--nnodes=1:3" in found["torchrun"].launch
    assert "--min-np 8 --max-np 24" in found["horovod-elastic"].launch
    assert "--nnodes=1 " in ways(elastic=())["torchrun"].launch


@pytest.mark.parametrize(
    ("gpus", "elastic", "expected"),
    [
        (16, (8, 16, 24, 32), (1, 4)),
        (16, (8, 16, 32), (1, 2)),  # on three nodes the batch would not stay
        (16, (8, 12, 16), (1, 2)),  # twelve GPUs are no whole nodes
        (16, (), (2, 2)),
        (4, (2, 4, 8), (1, 1)),
        (12, (8, 16), (2, 2)),
    ],
)
def test_a_launcher_may_start_on_every_number_of_nodes_in_its_range(gpus, elastic, expected):
    layout = replace(LAYOUT, gpus=gpus, data_parallel=gpus, shard_group=gpus)
    assert node_range(layout, elastic, 8) == expected


def test_without_failures_nothing_is_lost():
    never = replace(FAILING, mean_between_failures=float("inf"))
    assert {way.goodput for way in ways(failing=never).values()} == {1.0}
    assert {way.interval_seconds for way in ways(failing=never).values()} == {None}


def test_the_run_names_spare_nodes_where_an_availability_is_asked_for():
    given = Resilience(gpu_failures_per_month=0.08, target_availability=0.99, repair_seconds=86_400)
    asked = question(framework="fsdp2", gpus=64, resilience=given)
    run = plan_training(asked).plan.run
    # 8 GPUs at 0.08 / 30 a day are 0.0213 failures a node and day: up 97.9 % of the time with repairs of a day. All of
    # 8 are up 84.5 %, at least 8 of 9 98.5 %, of 10 99.9 %.
    assert (run.spare_nodes.nodes, run.spare_nodes.spares) == (8, 2)
    assert run.spare_nodes.availability == pytest.approx(0.999, abs=0.001)
    assert plan_training(question(framework="fsdp2")).plan.run.spare_nodes is None


def test_an_availability_without_a_repair_time_is_refused():
    with pytest.raises(InvalidQuestion) as caught:
        plan_training(question(resilience=Resilience(target_availability=0.99)))
    assert caught.value.pointer == "/resilience/repair_seconds"


def test_the_expected_time_is_that_of_the_steps_over_the_goodput():
    run = plan_training(question(framework="fsdp2", tokens=1e12)).plan.run
    assert run.expected_seconds == pytest.approx(run.seconds / run.goodput)
