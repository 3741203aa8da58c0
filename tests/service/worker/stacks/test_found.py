"""The stacks of the worker, found by their folders."""

import importlib

import pytest

from plimsoll.planners.stacks.profile import stack_names
from plimsoll.service.worker.stacks.found import find_stack, stacks, traced_stacks
from plimsoll.service.worker.training.own_code import OwnCode, own_code_of


def test_every_stack_is_one_that_the_planners_know():
    assert set(stacks()) <= set(stack_names())


@pytest.mark.parametrize("name", sorted(stacks()))
def test_a_folder_is_named_for_its_stack(name):
    assert importlib.import_module(f"plimsoll.service.worker.stacks.{name.replace('-', '_')}.stack").STACK.name == name


def test_an_unknown_stack_is_none_that_is_traced():
    assert find_stack("colossal").untraced == ""
    assert "colossal" not in stacks()


@pytest.mark.parametrize(
    ("framework", "kernels", "liger"),
    [("accelerate", "fused", True), ("accelerate", "eager", False), ("megatron", "fused", False), ("ddp", None, False)],
)
def test_liger_s_kernels_are_on_where_a_stack_takes_them_and_they_are_asked_for(framework, kernels, liger):
    assert find_stack(framework, kernels).has_liger_kernels is liger


def test_stacks_are_told_by_what_they_have():
    assert [stack.name for stack in traced_stacks(lambda stack: stack.has_fused_kernels)] == ["megatron"]


def test_what_stands_in_for_a_stack_s_own_code_is_loaded_by_name():
    plain = OwnCode()
    assert own_code_of(find_stack("ddp")) == plain
    assert own_code_of(find_stack("accelerate")).running is not plain.running
    assert own_code_of(find_stack("deepspeed")).engine is not plain.engine
    assert own_code_of(find_stack("megatron")).fuse_layers is not plain.fuse_layers
    assert own_code_of(find_stack("fsdp2")).cast_products is not plain.cast_products


@pytest.mark.parametrize("stack", traced_stacks(), ids=lambda stack: stack.name)
def test_a_stack_with_code_of_its_own_says_what_stands_in_for_it(stack):
    notes = stack.notes
    assert bool(notes.engine) is (stack.has_own_engine or bool(stack.own_wrapper))
    assert bool(notes.kernels) is bool(notes.kernels_on_device) is stack.has_fused_kernels
    assert bool(notes.experts) is (stack.groups_experts or stack.deals_experts)
