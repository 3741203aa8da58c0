"""Matrices over a split sequence with real values, in a group of one rank, which has all tokens itself."""

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from plimsoll.service.worker.stacks.megatron.sequence_gathers import GatheredAgain


@pytest.fixture
def group():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_the_gradients_are_those_of_a_linear_layer(group):
    torch.manual_seed(0)
    hidden, weight = torch.randn(1, 6, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    found = GatheredAgain.apply(hidden, hidden.detach(), weight, group)
    torch.testing.assert_close(found, torch.nn.functional.linear(hidden, weight))
    of_found = torch.autograd.grad(found.square().sum(), (hidden, weight))
    expected = torch.autograd.grad(torch.nn.functional.linear(hidden, weight).square().sum(), (hidden, weight))
    for gradient, other in zip(of_found, expected, strict=True):
        torch.testing.assert_close(gradient, other)
