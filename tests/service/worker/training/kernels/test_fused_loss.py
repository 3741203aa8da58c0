"""The fused cross-entropy, where its values are computed."""

import torch

from plimsoll.service.worker.training.kernels.fused_loss import FusedLinearCrossEntropy


def test_loss_and_gradients_are_those_of_separate_operations():
    torch.manual_seed(0)
    hidden, weight = torch.randn(10, 6, requires_grad=True), torch.randn(40, 6, requires_grad=True)
    labels = torch.randint(0, 40, (10,))
    loss = FusedLinearCrossEntropy.apply(hidden, weight, labels)
    gradients = torch.autograd.grad(loss, (hidden, weight))
    expected = torch.nn.functional.cross_entropy(hidden @ weight.t(), labels, reduction="sum")
    torch.testing.assert_close(loss, expected)
    for gradient, other in zip(gradients, torch.autograd.grad(expected, (hidden, weight)), strict=True):
        torch.testing.assert_close(gradient, other)
