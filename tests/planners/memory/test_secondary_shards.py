"""The second copy of stage 3's weights: how much of it a rank has, and where it lies."""

import pytest

from plimsoll.planners.memory.secondary_shards import on_device, on_device_at_loss, on_host, secondary_bytes
from plimsoll.planners.timing.efficiency import load_efficiency
from plimsoll.planners.timing.step import step_seconds
from tests.planners.factories import hardware
from tests.planners.training_cases import job, one_layout

# Llama 3 8B has 8,030,261,248 parameters, every tensor of which divides by 16.
ELEMENTS = 8_030_261_248


def layouts(group=8, **changes):
    return one_layout(**({"data_parallel": 16, "zero_stage": 3, "secondary_shard_group": group} | changes))


@pytest.mark.parametrize(("group", "elements"), [(1, 0), (2, ELEMENTS / 2), (8, ELEMENTS / 8)])
def test_a_rank_has_its_part_of_the_group_in_the_format_of_products(group, elements):
    assert secondary_bytes(layouts(group), job("deepspeed")).item() == 2 * elements


def test_every_tensor_is_padded_to_equal_parts_of_all_replicas():
    # Norms of 4,096 have 4,098 elements over three replicas, matrices of 4,096 x 4,096 two more.
    padded = secondary_bytes(layouts(3, data_parallel=3), job("deepspeed")).item()
    assert 2 * ELEMENTS / 3 < padded < 2 * (ELEMENTS + 2 * 300) / 3


def test_it_lies_with_the_parameters():
    own = job("deepspeed")
    whole = secondary_bytes(layouts(), own).item()
    on_gpu, offloaded = layouts(offload=1), layouts(offload=2)
    assert (on_device(on_gpu, own).item(), on_host(on_gpu, own).item()) == (whole, 0)
    assert (on_device(offloaded, own).item(), on_host(offloaded, own).item()) == (0, whole)


@pytest.mark.parametrize(("micro_batches", "missing"), [(1, 10**9), (2, 0)])
def test_in_a_single_micro_batch_what_stays_gathered_has_no_copy_yet(micro_batches, missing):
    own = job("deepspeed", global_batch_size=16 * micro_batches)
    at_loss = on_device_at_loss(layouts(), own).item()
    assert at_loss == 2 * (ELEMENTS - missing) / 8


def test_copies_of_frozen_weights_outlast_the_update():
    own = job("deepspeed", method="lora", global_batch_size=16)
    assert on_device_at_loss(layouts(), own).item() == on_device(layouts(), own).item()


def test_on_the_host_each_gather_brings_a_larger_part_up():
    own, machine, efficiency = job("deepspeed", global_batch_size=32), hardware(16), load_efficiency("deepspeed")
    once, twice = (step_seconds(layouts(group, offload=2), own, machine, efficiency).offload.item() for group in (1, 8))
    # Two micro-batches gather four times, three of them an eighth of the weights in the place of a sixteenth.
    pcie = machine.gpu.pcie_bytes_per_second * efficiency.common.pcie_fraction
    assert twice - once == pytest.approx(3 * 2 * ELEMENTS / 16 / pcie, rel=1e-3)
