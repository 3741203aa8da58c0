"""The loss that leaves its gradient in place of the logits."""

import torch

from plimsoll.service.worker.training.kernels.in_place_loss import InPlaceCrossEntropy, vocabulary_parallel_loss


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
