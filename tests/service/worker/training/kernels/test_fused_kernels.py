"""Fused kernels where their values are computed: those of separate operations."""

import torch

from plimsoll.service.worker.training.kernels.fused_kernels import (
    EPSILON,
    FusedRmsNorm,
    FusedSwiGlu,
    InPlaceCrossEntropy,
    vocabulary_parallel_loss,
)


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


def test_the_loss_is_the_mean_cross_entropy_and_its_gradient_takes_the_logits_place():
    torch.manual_seed(0)
    logits, labels = torch.randn(10, 40), torch.randint(0, 40, (10,))
    separate = logits.clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(separate, labels)
    expected.backward()
    leaf = logits.requires_grad_()
    loss = InPlaceCrossEntropy.apply(leaf * 1.0, labels)
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, leaf)
    torch.testing.assert_close(gradient, separate.grad)


def test_a_label_of_another_rank_s_part_of_the_vocabulary_stands_for_one_of_this_rank_s():
    logits = torch.zeros(1, 2, 4, requires_grad=True)
    # Four words alike: log 4, whatever the label.
    assert vocabulary_parallel_loss(logits, torch.tensor([[9, 1]])).item() == torch.tensor(4.0).log().item()
