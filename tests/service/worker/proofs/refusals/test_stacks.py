"""Which stacks are refused, and which kernels of them."""

import pytest

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.proofs.refusals.every import refuse
from plimsoll.service.worker.stacks.found import find_stack, stacks
from tests.service.worker.cases import asked

UNTRACED = sorted(stack.name for stack in stacks().values() if stack.untraced is not None)


@pytest.mark.parametrize("framework", UNTRACED)
def test_a_stack_that_is_not_traced_is_refused_with_the_reason(framework):
    with pytest.raises(NotYetAvailable, match=f"'{framework}' is not traced yet: {stacks()[framework].untraced}; "):
        refuse(asked(framework=framework), on_device=False)


def test_a_stack_without_a_folder_is_refused_with_those_that_are_traced():
    traced = "accelerate, ddp, deepspeed, fsdp2, megatron, reference, torchtune"
    with pytest.raises(NotYetAvailable, match=f"Framework 'colossal' is not traced yet; traced are {traced}"):
        refuse(asked(framework="colossal"), on_device=False)


def test_that_a_stack_is_not_traced_is_told_before_what_no_trace_of_a_job_knows():
    with pytest.raises(NotYetAvailable, match="'litgpt' is not traced yet"):
        refuse(asked(framework="litgpt", offload="optimizer", precision="int8-mixed"), on_device=False)


@pytest.mark.parametrize(("framework", "kernels"), [("reference", "fused"), ("megatron", "eager")])
def test_kernels_that_a_stack_is_not_traced_with_are_refused(framework, kernels):
    with pytest.raises(NotYetAvailable, match=kernels) as refusal:
        refuse(asked(framework=framework, kernels=kernels), on_device=False)
    assert refusal.value.pointer == "/training/kernels"


@pytest.mark.parametrize(("framework", "kernels"), [("fsdp2", "eager"), ("megatron", "fused")])
def test_naming_the_kernels_a_stack_is_traced_with_changes_nothing(framework, kernels):
    assert find_stack(framework, kernels) == find_stack(framework)
