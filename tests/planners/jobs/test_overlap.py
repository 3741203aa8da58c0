"""Which traffic a job hides: what it asks for, and else what its stack does."""

from plimsoll.planners.jobs.overlap import job_overlap
from plimsoll.planners.questions import Overlap
from plimsoll.planners.stacks.profile import load_profile


def test_what_nobody_asks_for_is_as_the_stack_does_it():
    megatron, torchtitan = (job_overlap(None, load_profile(name).overlap) for name in ("megatron", "fsdp2"))
    assert (megatron.gradients, megatron.parameters, megatron.tensor_parallel) == (True, True, False)
    assert (torchtitan.gradients, torchtitan.parameters, torchtitan.tensor_parallel) == (True, True, False)


def test_the_exchange_with_experts_is_the_searchs_to_choose():
    stack = load_profile("megatron").overlap
    assert job_overlap(None, stack).expert_parallel == (False, True)
    assert job_overlap(Overlap(expert_parallel=False), stack).expert_parallel == (False,)
    assert job_overlap(Overlap(expert_parallel=True), stack).expert_parallel == (True,)


def test_megatrons_layers_hide_tensor_parallel_traffic_with_its_option_and_without():
    megatron, torchtitan = (load_profile(name).overlap for name in ("megatron", "fsdp2"))
    for on in (False, True):
        told = Overlap(tensor_parallel=on)
        assert job_overlap(told, megatron).tensor_parallel is on
        assert job_overlap(told, megatron).hides_tensor_parallel
        assert job_overlap(told, torchtitan).hides_tensor_parallel is on
