"""The peak of one GPU as each counter shows it."""

import pytest

from plimsoll.planners.memory.readings import readings
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import small_llama
from tests.planners.training_cases import memory


def test_each_reading_has_its_own_band():
    profile = load_profile("megatron")
    whole, allocated = profile.band, profile.allocated_band
    found = readings(profile, allocated=100, reserved=104, expandable=101, needed=103, runtime=10)
    told = {reading.name: (reading.size_bytes, reading.low_bytes, reading.high_bytes) for reading in found}
    assert told == {
        "allocated": (100, int(100 * allocated.low), int(100 * allocated.high)),
        "reserved": (104, int(104 * whole.low), int(104 * whole.high)),
        "reserved_expandable_segments": (101, int(101 * allocated.low), int(101 * whole.high)),
        "device": (114, int(114 * whole.low), int(114 * whole.high)),
        "needed": (113, int(113 * allocated.low), int(113 * allocated.high)),
    }


@pytest.mark.parametrize("framework", ["accelerate", "ddp", "fsdp2", "deepspeed", "megatron", "torchtune"])
def test_readings_are_those_of_the_answer_and_lie_in_order(framework):
    precision = "bf16" if framework == "torchtune" else "bf16-mixed"
    layout = {"data_parallel": 8, "shard_group": 8, "zero_stage": {"ddp": 0, "megatron": 1}.get(framework, 3)}
    plan = memory(framework, model=small_llama(), sequence_length=4096, precision=precision, layout=layout)
    size = {reading.name: reading.size_bytes for reading in plan.readings}
    assert (size["allocated"], size["reserved"]) == (plan.allocated_bytes, plan.reserved_bytes)
    assert size["device"] == plan.peak_bytes
    assert size["allocated"] <= size["reserved_expandable_segments"] <= size["reserved"]
    assert size["allocated"] + plan.items.runtime <= size["needed"] <= size["device"]
