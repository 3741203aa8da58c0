from typing import Any

import numpy as np

from plimsoll.planners.derived import Derived
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.memory.peak import memory_and_needs, memory_of, needs_of
from plimsoll.planners.training.elastic import resized
from tests.planners.factories import hardware, small_mixtral
from tests.planners.training_cases import job, one_layout

BATCH = 64


def fsdp2(**changes: Any) -> Job:
    return job("fsdp2", **{"global_batch_size": BATCH, **changes})


def test_replicas_divide_the_micro_batches_from_a_quarter_to_four_times_as_many():
    # 64 sequences in micro-batches of 4 are 16: of 2 (a quarter) to 16 replicas those that divide it.
    sizes = resized(one_layout(data_parallel=8, micro_batch_size=4), 0, fsdp2())
    assert sizes.layouts.data_parallel.tolist() == [2, 4, 8, 16]
    assert sizes.layouts.shard_group.tolist() == [2, 4, 8, 16]
    assert sizes.own == 2


def test_one_replica_has_no_quarter():
    sizes = resized(one_layout(tensor_parallel=2), 0, fsdp2())
    assert sizes.layouts.data_parallel.tolist() == [1, 2, 4]
    assert sizes.own == 0


def test_shard_groups_stay_whole():
    # Of 2, 4, 8, 16 and 32 replicas those that are whole groups of 4.
    sizes = resized(one_layout(data_parallel=8, shard_group=4), 0, fsdp2())
    assert sizes.layouts.data_parallel.tolist() == [4, 8, 16, 32]
    assert set(sizes.layouts.shard_group.tolist()) == {4}


def test_the_layout_is_that_of_its_place_in_the_list():
    two = candidates_from_rows([{"data_parallel": 2}, {"data_parallel": 4, "tensor_parallel": 2}])
    sizes = resized(two, 1, fsdp2())
    own = sizes.layouts.take([sizes.own])
    assert (own.data_parallel[0], own.tensor_parallel[0]) == (4, 2)


def test_sizes_that_do_not_fit_are_not_named():
    sizes = resized(one_layout(data_parallel=4, tensor_parallel=2), 0, fsdp2())
    fits = sizes.layouts.data_parallel >= 4
    # 1 and 2 replicas are omitted; two ranks each.
    assert sizes.elastic_gpus(fits) == (8, 16, 32)


def test_sizes_on_which_a_rule_is_broken_have_no_account():
    # Of 16 (a quarter of 64) to 256 replicas 16, 24, 32, 48, 64, 96 and 192 divide 192. Over 8 of them each expert's
    # 2,048 columns are cut into 2, 3, 4, 6, 8, 12 and 24 parts, which FSDP2 does evenly or not at all: 2, 4 and 8.
    mixture = small_mixtral(num_local_experts=8, intermediate_size=2048)
    layout = one_layout(data_parallel=64, expert_parallel=8, zero_stage=3)
    sizes = resized(layout, 0, fsdp2(model=mixture, global_batch_size=192))
    assert sizes.layouts.data_parallel.tolist() == [16, 32, 64]


def test_peaks_beside_an_account_are_those_of_the_search():
    through = job("megatron", global_batch_size=BATCH)
    sizes = resized(one_layout(data_parallel=4, pipeline_parallel=4, zero_stage=1), 0, through)
    memory, needs = memory_and_needs(sizes.layouts, sizes.own, through, hardware(16), Derived())
    assert np.array_equal(needs.peaks, needs_of(sizes.layouts, through).peaks)
    assert np.array_equal(needs.node_host, needs_of(sizes.layouts, through).node_host)
    assert memory == memory_of(sizes.layouts, sizes.own, through, hardware(16))
    assert memory.peak_bytes == needs.peaks[sizes.own]
