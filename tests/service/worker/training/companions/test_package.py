import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.training.companions.package import EveryTokenIsScored, load_trl, runnable_trl

TOKENS, WIDTH = 12, 5


def scored(look):
    with FakeTensorMode(), EveryTokenIsScored():
        hidden = torch.zeros(3, 4, WIDTH, requires_grad=True)
        return look(hidden, torch.ones(3, 4, dtype=torch.bool))


def test_a_mask_picks_out_every_token():
    assert scored(lambda hidden, mask: hidden[mask]).shape == (TOKENS, WIDTH)
    assert scored(lambda hidden, mask: hidden.detach().select(-1, 0).masked_select(mask)).shape == (TOKENS,)


def test_what_a_mask_picked_out_is_differentiated():
    def gradient(hidden, mask):
        hidden[mask].sum().backward()
        return hidden.grad.shape

    assert scored(gradient) == (3, 4, WIDTH)


def test_other_indices_are_left_as_they_are():
    assert scored(lambda hidden, _mask: hidden[torch.zeros(2, dtype=torch.int64)]).shape == (2, 4, WIDTH)


def test_a_worker_without_trl_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(NotYetAvailable, match="--no-deps, TRL") as refusal:
        load_trl()
    assert refusal.value.pointer == "/training/companions"


def test_trl_is_given_back_its_kernels():
    pytest.importorskip("trl")
    from trl.kernels import chunked_logprob

    before = dict(vars(chunked_logprob))
    with runnable_trl():
        assert chunked_logprob._use_triton(torch.device("cpu"))
        assert chunked_logprob.triton.cdiv(9, 4) == 3
    assert dict(vars(chunked_logprob)) == before
