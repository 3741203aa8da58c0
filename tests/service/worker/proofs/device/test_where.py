"""Which ranks run, and whether there is memory for them."""

import pytest

from plimsoll.service.ground.errors import NoSuitableDevice
from plimsoll.service.worker.devices.device import Device
from plimsoll.service.worker.proofs.device.where import MOST_CPU_RANKS, PROCESS_BYTES, ranks_to_run
from plimsoll.service.worker.stacks.found import find_stack
from tests.service.worker.cases import job

STACK = find_stack("accelerate")
PLANNED = 100 << 20
# A tenth more than planned, and what a process takes: 110 MiB + 640 MiB.
NEEDED = (110 << 20) + PROCESS_BYTES


def device(memory_bytes, *, kind="cpu", count=1, is_planned_kind=False):
    return Device(type=kind, name=kind, memory_bytes=memory_bytes, count=count, is_planned_kind=is_planned_kind)


def test_all_ranks_run_where_the_host_holds_them_and_share_its_memory():
    ranks = ranks_to_run(job(), STACK, device(4 * NEEDED), planned_bytes=PLANNED)
    assert (ranks.processes, ranks.memory_bytes, ranks.moves_data) == (4, NEEDED, True)


def test_one_rank_stands_for_all_where_the_host_holds_only_it():
    ranks = ranks_to_run(job(), STACK, device(4 * NEEDED - 1), planned_bytes=PLANNED)
    assert (ranks.processes, ranks.memory_bytes, ranks.moves_data) == (1, None, False)


def test_a_host_too_small_for_one_rank_is_refused_with_the_numbers():
    assert ranks_to_run(job(), STACK, device(NEEDED), planned_bytes=PLANNED).processes == 1
    with pytest.raises(NoSuitableDevice, match=r"0\.73 GiB"):
        ranks_to_run(job(), STACK, device(NEEDED - 1), planned_bytes=PLANNED)


def test_a_card_of_the_plan_s_kind_is_tried_however_little_it_has():
    # Running out of memory there is what the plan is to be judged by.
    small = device(PLANNED, kind="cuda", is_planned_kind=True)
    assert ranks_to_run(job(), STACK, small, planned_bytes=PLANNED).processes == 1


@pytest.mark.parametrize(("cards", "processes"), [(3, 1), (4, 4), (8, 4)])
def test_as_many_cards_as_ranks_run_them_all(cards, processes):
    found = device(80 << 30, kind="cuda", count=cards, is_planned_kind=True)
    assert ranks_to_run(job(), STACK, found, planned_bytes=PLANNED).processes == processes


def test_more_ranks_than_a_host_has_turns_for_run_one_at_a_time():
    many = job(data_parallel=MOST_CPU_RANKS + 1)
    assert ranks_to_run(many, STACK, device(1 << 40), planned_bytes=PLANNED).processes == 1


@pytest.mark.parametrize(
    "alone",
    [
        {"pipeline_parallel": 2, "data_parallel": 2},
        {"framework": "reference", "zero_stage": 1},
        {"data_parallel": 1},
    ],
)
def test_pipelines_sharded_updates_and_single_ranks_run_alone(alone):
    assert ranks_to_run(job(**alone), STACK, device(1 << 40), planned_bytes=PLANNED).processes == 1
