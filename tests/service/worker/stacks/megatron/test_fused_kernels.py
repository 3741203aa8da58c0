"""Fused kernels where their values are computed: those of separate operations."""

import torch

from plimsoll.service.worker.stacks.megatron.fused_kernels import FusedRmsNorm, FusedSwiGlu
from plimsoll.service.worker.training.kernels.rms_norm import EPSILON


def check(outputs, expected, inputs):
    torch.testing.assert_close(outputs, expected)
    weights = torch.linspace(-1, 1, outputs.numel()).view_as(outputs)
    found = torch.autograd.grad((outputs * weights).sum(), inputs)
    for gradient, other in zip(found, torch.autograd.grad((expected * weights).sum(), inputs), strict=True):
        torch.testing.assert_close(gradient, other)


def test_a_norm_divides_by_the_root_of_the_mean_square():
    torch.manual_seed(0)
    hidden, weight = torch.randn(2, 5, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    expected = torch.nn.functional.rms_norm(hidden, (8,), weight, EPSILON)
    check(FusedRmsNorm.apply(hidden, weight), expected, (hidden, weight))


def test_swiglu_gates_one_half_by_the_other():
    torch.manual_seed(0)
    gate, up = torch.randn(2, 5, 8, requires_grad=True), torch.randn(2, 5, 8, requires_grad=True)
    check(FusedSwiGlu.apply(gate, up), torch.nn.functional.silu(gate) * up, (gate, up))
