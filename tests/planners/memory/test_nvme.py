"""ZeRO-Infinity: what lies on the drives, what the host keeps, and what moving it takes."""

import dataclasses

import numpy as np
import pytest

from plimsoll.planners.ground.errors import ImpossibleLayout, InvalidQuestion
from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.memory.peak import memory_of
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.planners.timing.efficiency import load_efficiency
from plimsoll.planners.timing.nvme import nvme_seconds
from plimsoll.planners.training.planning import plan_without_advice
from tests.planners.factories import hardware, question

# Llama 3 8B has 8,030,261,248 parameters; over two ranks 4,015,130,624.
LOCAL = 4_015_130_624


def _job(target="nvme"):
    return training_job(question(gpus=2, layout={"offload_target": target}), load_profile("deepspeed"))


def _layouts(offload):
    return candidates_from_rows([{"data_parallel": 2, "zero_stage": 3, "offload": offload}])


def test_optimizer_states_lie_on_the_drives_and_the_host_keeps_four_buffers():
    # fp32 gradient, master copy and two events: 16 bytes; 4 buffers x 1e9 elements x 4 bytes, and 16-bit gradients.
    memory = memory_of(_layouts(1), 0, _job(), hardware(2))
    assert memory.nvme_bytes == 16 * LOCAL
    assert memory.host_bytes == 16_000_000_000 + 2 * LOCAL


def test_of_the_parameters_the_host_keeps_a_billion_and_five_buffers():
    # 18 bytes a parameter, less 2e9 bytes in the host; beside them 16e9 and 5 x 1e8 x 2 bytes of buffers, and the
    # 16-bit gradients.
    memory = memory_of(_layouts(2), 0, _job(), hardware(2))
    assert memory.nvme_bytes == 18 * LOCAL - 2_000_000_000
    assert memory.host_bytes == 16_000_000_000 + 2_000_000_000 + 1_000_000_000 + 2 * LOCAL


def test_with_the_host_as_target_nothing_lies_on_the_drives():
    memory = memory_of(_layouts(2), 0, _job("cpu"), hardware(2))
    assert (memory.nvme_bytes, memory.host_bytes) == (0, 20 * LOCAL)


@pytest.mark.parametrize(("rate", "seconds"), [(None, 20.0), (3.2e9, 10.0)])
def test_states_are_read_and_written_once_a_step(rate, seconds):
    # 1e9 elements x 16 bytes, there and back, is 32 GB: 20 s at 1.6 GB/s.
    machine = dataclasses.replace(hardware(2), nvme_bytes_per_second=rate)
    efficiency = load_efficiency("deepspeed", "test-80gb")
    assert nvme_seconds(_layouts(1), _job(), machine, efficiency, np.array([1e9]))[0] == pytest.approx(seconds)


def test_parameters_beyond_the_hosts_are_read_in_every_pass():
    # 3e9 elements: states 96 GB; 2e9 beyond x 2 bytes x (2 x 32 micro-batches + 1) = 260 GB; 356 GB at 1.6 GB/s.
    efficiency = load_efficiency("deepspeed", "test-80gb")
    seconds = nvme_seconds(_layouts(2), _job(), hardware(2), efficiency, np.array([3e9]))
    assert seconds[0] == pytest.approx(222.5)


def test_nothing_moves_where_the_host_is_the_target():
    efficiency = load_efficiency("deepspeed", "test-80gb")
    assert nvme_seconds(_layouts(2), _job("cpu"), hardware(2), efficiency, np.array([3e9]))[0] == 0


def test_a_stage_without_swappers_is_refused():
    with pytest.raises(ImpossibleLayout) as refusal:
        plan_without_advice(
            question(
                framework="deepspeed",
                layout={"offload": "optimizer", "offload_target": "nvme", "zero_stage": 2},
            )
        )
    assert refusal.value.rule == "nvme_needs_stage_three"
    assert refusal.value.pointer == "/layout/offload_target"
    assert "needs zero_stage 3, not 2" in str(refusal.value)


def test_a_stack_that_knows_no_nvme_is_refused():
    with pytest.raises(InvalidQuestion) as refusal:
        plan_without_advice(question(framework="megatron", layout={"offload_target": "nvme"}))
    assert refusal.value.pointer == "/layout/offload_target"
