import torch
from torch import nn

from plimsoll.service.worker.training.discarded_outputs import discard_output


def gradients(norm, user, hidden):
    loss = user(norm(hidden)).sin().sum()
    loss.backward()
    return hidden.grad, norm.weight.grad, user.weight.grad


def small(seed=0):
    torch.manual_seed(seed)
    return nn.LayerNorm(8), nn.Linear(8, 4), torch.randn(3, 8, requires_grad=True)


def test_gradients_are_those_of_an_output_that_was_kept():
    kept = gradients(*small())
    norm, user, hidden = small()
    discard_output(norm, until=user)
    for found, wanted in zip(gradients(norm, user, hidden), kept, strict=True):
        assert torch.equal(found, wanted)


def test_the_output_is_empty_between_the_passes():
    norm, user, hidden = small()
    discard_output(norm, until=user)
    output = norm(hidden)
    assert output.untyped_storage().nbytes() == 3 * 8 * 4
    user(output)
    assert output.untyped_storage().nbytes() == 0


def test_without_gradients_nothing_is_discarded():
    norm, user, hidden = small()
    discard_output(norm, until=user)
    with torch.no_grad():
        output = norm(hidden)
        user(output)
    assert output.untyped_storage().nbytes() == 3 * 8 * 4
