"""Gradients averaged over replicas, a bucket at a time."""

import torch
import torch.distributed as dist
from torch import nn

from plimsoll.service.worker.proofs.device.replicas import ReducedFirst
from plimsoll.service.worker.training.optimizers import TorchOptimizer, torch_optimizer
from plimsoll.service.worker.training.rank import process_group_of


def test_every_gradient_goes_through_its_bucket_from_the_last_parameter_on():
    first, second = nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(4))
    first.grad, second.grad = torch.full((2, 3), 6.0), torch.full((4,), 8.0)
    buckets = [torch.zeros(4), torch.zeros(6)]
    with process_group_of(2):
        inner = TorchOptimizer(torch_optimizer("sgd", [first, second]))
        reduced = ReducedFirst(inner, [first, second], buckets, dist.group.WORLD)
        reduced.step()
    # A group that only pretends adds nothing up, so that the mean of two is half.
    assert (buckets[0].tolist(), buckets[1].tolist()) == ([4.0] * 4, [3.0] * 6)
    assert first.grad.unique().tolist() == [3.0]
    # SGD's step of 1e-4 times the averaged gradient.
    assert torch.allclose(second, torch.full((4,), -4e-4))


def test_gradients_are_dropped_and_states_told_by_the_optimizer_within():
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    reduced = ReducedFirst(TorchOptimizer(torch_optimizer("sgd-momentum", [parameter])), [parameter], [], None)
    reduced.step()
    assert [name for name, _ in reduced.named_states()] == ["momentum_buffer"]
    reduced.zero_grad()
    assert parameter.grad is None
