"""Host memory as a limit: the need of a node, its verdict, and what the search makes of it."""

from dataclasses import replace

import numpy as np
import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.hardware import GpuCount
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.memory.peak import FITS, NO, UNSURE, Needs, excess, have_memory, memory_of, needs_of, verdicts
from plimsoll.planners.search.search import search
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.planners.training.planning import plan_without_advice
from tests.planners.factories import LLAMA_3_70B, gpu, hardware, llama, question

H100 = catalogue().gpu("h100-sxm-80gb")
# Llama 3 8B; under DeepSpeed's stage 3 the host has 4 + 4 + 8 bytes and 2 of gradients for each, with parameters 20.
PARAMETERS = 8_030_261_248


def needs(host_gib, gpus_on_node=8):
    return Needs(
        peaks=np.array([GIB * 1.0]), node_host=np.array([host_gib * GIB]), gpus_on_node=np.array([gpus_on_node])
    )


def verdict(host_gib, gpus_on_node=8, **changes):
    asked = training_job(question(), load_profile("deepspeed"))
    (found,) = verdicts(needs(host_gib, gpus_on_node), asked, hardware(8, gpu=H100, **changes)).tolist()
    return found


@pytest.mark.parametrize(
    ("host_gib", "gpus_on_node", "expected"),
    [
        # 234 GiB per GPU is the least of any node with eight H100, 2,048 GiB the most of a node.
        (8 * 234, 8, FITS),
        (8 * 234 + 1, 8, UNSURE),
        (2048, 8, UNSURE),
        (2049, 8, NO),
        (234, 1, FITS),
        (235, 1, UNSURE),
        (2048, 1, UNSURE),
        (2049, 1, NO),
        # Sixteen of them in one node are more than the catalogue has, and each has its share.
        (16 * 234, 16, FITS),
        (16 * 234 + 1, 16, NO),
    ],
)
def test_what_is_assumed_is_sure_to_the_least_share_and_possible_to_the_largest_node(host_gib, gpus_on_node, expected):
    assert verdict(host_gib, gpus_on_node) == expected


def test_what_is_given_is_the_whole_node_s_and_hard():
    assert verdict(512, 1, host_memory_bytes=512 * GIB) == FITS
    assert verdict(512, 1, host_memory_bytes=512 * GIB - 1) == NO
    assert verdict(9999, 1, host_memory_bytes=9999 * GIB) == FITS


def test_the_excess_is_of_what_is_lacking_alone():
    # 2 of 1 GiB on the host, and a device that is not full: twice; three times too full a device as well: six times.
    machine = hardware(8, host_memory_bytes=GIB)
    twice = needs(2)
    assert excess(twice, machine).tolist() == [2.0]
    assert excess(replace(twice, peaks=np.array([3.0 * machine.limit_bytes])), machine).tolist() == [6.0]
    assert have_memory(needs(1), machine).tolist() == [True]
    assert have_memory(twice, machine).tolist() == [False]


@pytest.mark.parametrize(("gpus", "on_node"), [(1, 1), (4, 4), (16, 8)])
def test_the_fullest_node_needs_what_its_gpus_need_together(gpus, on_node):
    layout = {"data_parallel": gpus, "zero_stage": 3, "offload": 2}
    asked = question(gpus=gpus, framework="deepspeed", global_batch_size=64)
    job = training_job(asked, load_profile("deepspeed"))
    memory = memory_of(candidates_from_rows([layout]), 0, job, asked.hardware)
    # Loading, 2 bytes of every parameter for each rank, is in the bytes per GPU and not in those of the node.
    assert memory.node_host_bytes == pytest.approx(20 * PARAMETERS / gpus * on_node, rel=1e-6)
    assert memory.host_bytes == max(2 * PARAMETERS, memory.node_host_bytes // on_node)


@pytest.mark.parametrize("framework", ["deepspeed", "megatron", "accelerate", "torchtune", "atorch"])
def test_the_search_and_the_account_agree_on_the_host(framework):
    stages = (1, 2, 4) if load_profile(framework).can.pipeline_parallel else (1,)
    rows = [
        {"data_parallel": 16 // degree, "pipeline_parallel": degree, "zero_stage": stage, "offload": offload}
        for degree in stages
        for stage in load_profile(framework).can.zero_stages
        for offload in range(len(load_profile(framework).can.offload))
        if offload < 2 or stage == 3
    ]
    precision = {"torchtune": "bf16"}.get(framework, "bf16-mixed")
    asked = question(gpus=16, framework=framework, precision=precision)
    job = training_job(asked, load_profile(framework))
    layouts = candidates_from_rows(rows)
    full = [memory_of(layouts, index, job, asked.hardware).node_host_bytes for index in range(len(rows))]
    found = needs_of(layouts, job)
    assert np.broadcast_to(found.node_host, found.peaks.shape).astype(np.int64).tolist() == full


def on_h100(gpus, **changes):
    machine = hardware(gpus, gpu=H100, host_memory_bytes=changes.pop("host_memory_bytes", None))
    return question(**{"model": llama(**LLAMA_3_70B), "gpus": gpus, **changes, "hardware": machine})


def test_70b_on_one_gpu_is_tight_until_its_node_is_known():
    # 70.6 billion parameters with fp32 states and weights take over 1,000 GiB: more than 234, less than 2,048.
    plan = plan_without_advice(on_h100(1))
    assert plan.verdict == "tight"
    assert 1000 * GIB < plan.plan.memory.node_host_bytes < 2048 * GIB
    assert plan_without_advice(on_h100(1, host_memory_bytes=2048 * GIB)).verdict == "fits"
    small = plan_without_advice(on_h100(1, host_memory_bytes=512 * GIB))
    assert (small.verdict, small.fits) == ("no", False)
    assert small.plan.memory.peak_bytes <= small.plan.memory.limit_bytes


def test_a_plan_that_is_sure_on_the_host_goes_before_fewer_gpus_that_are_not():
    # Eight GPUs have 8 x 234 GiB for the 1,000; one to four have not.
    asked = on_h100(None, objective="fewest_gpus")
    plan = plan_without_advice(asked).plan
    assert plan.layout.gpus > 4
    assert plan.memory.node_host_bytes <= plan.memory.node_host_sure_bytes
    most = replace(asked.hardware, gpus=GpuCount(minimum=1, maximum=4))
    unsure = plan_without_advice(replace(asked, hardware=most))
    assert unsure.verdict == "tight"


def test_less_host_memory_never_makes_more_fit():
    found = [search_of(on_h100(8, framework="accelerate", host_memory_bytes=size * GIB)) for size in (64, 700, 4096)]
    assert [each[0] for each in found] == sorted(each[0] for each in found)


def search_of(asked):
    found = search(asked, [training_job(asked, load_profile(asked.framework))])
    pool = found.pools[found.chosen[0]]
    return float(pool.verdicts[found.chosen[1]]), float(pool.seconds[found.chosen[1]])


def test_a_card_of_no_cluster_has_what_nodes_have_beside_their_gpus():
    memory = plan_without_advice(question(gpus=8)).plan.memory
    assert memory.node_host_sure_bytes < memory.node_host_limit_bytes
    assert gpu().id not in {cluster.gpu for cluster in catalogue().clusters}
