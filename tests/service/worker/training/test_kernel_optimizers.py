"""The states of optimizers whose update is one kernel."""

import pytest
import torch
from torch import nn

from plimsoll.service.worker.recording.host_memory import is_host, on_host
from plimsoll.service.worker.training.kernel_optimizers import LEAST_8BIT_ELEMENTS, KernelOptimizer


def states(name, elements, *, wide=False):
    parameter = nn.Parameter(torch.zeros(elements))
    optimizer = KernelOptimizer(name, [parameter], wide=[parameter] if wide else [])
    optimizer.step()
    assert not list(optimizer.named_states())  # without a gradient it passes over the parameter
    parameter.grad = torch.zeros(elements)
    optimizer.step()
    optimizer.step()
    held = [(state_name, state.dtype, state.numel()) for state_name, state in optimizer.named_states()]
    optimizer.zero_grad()
    assert parameter.grad is None
    return held


@pytest.mark.parametrize(
    ("elements", "wide", "dtype"),
    [
        (LEAST_8BIT_ELEMENTS - 1, False, torch.float32),
        (LEAST_8BIT_ELEMENTS, False, torch.uint8),
        (LEAST_8BIT_ELEMENTS + 1, False, torch.uint8),
        (LEAST_8BIT_ELEMENTS, True, torch.float32),
    ],
)
def test_small_and_wide_tensors_have_states_in_fp32(elements, wide, dtype):
    held = {name: kind for name, kind, _ in states("adamw-8bit", elements, wide=wide)}
    assert held["state1"] == held["state2"] == dtype


def test_eight_bits_take_a_scale_for_each_256_elements_begun():
    # 4,097 elements are 16 blocks and one more.
    assert ("absmax2", torch.float32, 17) in states("adamw-8bit", 4097)


def test_lion_has_one_state():
    assert states("lion", 10) == [("state1", torch.float32, 10)]


@pytest.mark.parametrize(("elements", "there"), [(99_999, False), (100_000, True)])
def test_paged_states_are_the_host_s_from_100_000_elements_on(monkeypatch, elements, there):
    seen = []
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, **named: (seen.append(is_host()), empty(*args, **named))[1])
    states("paged-adamw", elements)
    assert seen == [there, there]


def test_the_device_s_memory_is_the_one_outside_the_block():
    with on_host():
        assert is_host()
        with on_host(False):
            assert not is_host()
    assert not is_host()
