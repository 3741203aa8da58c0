import numpy as np

from planners.elastic import resized
from planners.layout.candidates import candidates_from_rows
from planners.memory.peak import memory_and_peaks, memory_of, peak_bytes
from tests.planners.factories import hardware
from tests.planners.training_cases import job, one_layout

BATCH = 64


def test_replicas_divide_the_micro_batches_from_a_quarter_to_four_times_as_many():
    # 64 sequences in micro-batches of 4 are 16: of 2 (a quarter) to 16 replicas those that divide it.
    sizes = resized(one_layout(data_parallel=8, micro_batch_size=4), 0, BATCH)
    assert sizes.layouts.data_parallel.tolist() == [2, 4, 8, 16]
    assert sizes.layouts.shard_group.tolist() == [2, 4, 8, 16]
    assert sizes.own == 2


def test_one_replica_has_no_quarter():
    sizes = resized(one_layout(tensor_parallel=2), 0, BATCH)
    assert sizes.layouts.data_parallel.tolist() == [1, 2, 4]
    assert sizes.own == 0


def test_shard_groups_stay_whole():
    # Of 2, 4, 8, 16 and 32 replicas those that are whole groups of 4.
    sizes = resized(one_layout(data_parallel=8, shard_group=4), 0, BATCH)
    assert sizes.layouts.data_parallel.tolist() == [4, 8, 16, 32]
    assert set(sizes.layouts.shard_group.tolist()) == {4}


def test_the_layout_is_that_of_its_place_in_the_list():
    two = candidates_from_rows([{"data_parallel": 2}, {"data_parallel": 4, "tensor_parallel": 2}])
    sizes = resized(two, 1, BATCH)
    own = sizes.layouts.take([sizes.own])
    assert (own.data_parallel[0], own.tensor_parallel[0]) == (4, 2)


def test_sizes_that_do_not_fit_are_not_named():
    sizes = resized(one_layout(data_parallel=4, tensor_parallel=2), 0, BATCH)
    fits = sizes.layouts.data_parallel >= 4
    # 1 and 2 replicas are left away; two ranks each.
    assert sizes.elastic_gpus(job("fsdp2", global_batch_size=BATCH), fits) == (8, 16, 32)


def test_peaks_beside_an_account_are_those_of_the_search():
    through = job("megatron", global_batch_size=BATCH)
    sizes = resized(one_layout(data_parallel=4, pipeline_parallel=4, zero_stage=1), 0, BATCH)
    memory, peaks = memory_and_peaks(sizes.layouts, sizes.own, through, hardware(16))
    assert np.array_equal(peaks, peak_bytes(sizes.layouts, through))
    assert memory == memory_of(sizes.layouts, sizes.own, through, hardware(16))
    assert memory.peak_bytes == peaks[sizes.own]
