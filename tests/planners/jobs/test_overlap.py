"""Which traffic a job hides: what it asks for, and else what its stack does."""

from plimsoll.planners.jobs.overlap import job_overlap
from plimsoll.planners.questions import Overlap
from plimsoll.planners.stacks.profile import load_profile


def test_what_nobody_asks_for_is_as_the_stack_does_it():
    megatron, torchtitan = (job_overlap(None, load_profile(name).overlap) for name in ("megatron", "fsdp2"))
    assert (megatron.gradients, megatron.parameters, megatron.tensor_parallel) == (True, True, True)
    assert (torchtitan.gradients, torchtitan.parameters, torchtitan.tensor_parallel) == (True, True, False)


def test_the_exchange_with_experts_is_the_searchs_to_choose():
    stack = load_profile("megatron").overlap
    assert job_overlap(None, stack).expert_parallel == (False, True)
    assert job_overlap(Overlap(expert_parallel=False), stack).expert_parallel == (False,)
    assert job_overlap(Overlap(expert_parallel=True), stack).expert_parallel == (True,)


def test_only_who_names_tensor_parallel_traffic_asks_for_its_buffers():
    stack = load_profile("megatron").overlap
    assert not job_overlap(Overlap(gradients=True), stack).asks_tensor_parallel
    assert job_overlap(Overlap(tensor_parallel=True), stack).asks_tensor_parallel
