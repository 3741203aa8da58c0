import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from plimsoll.service.worker.recording.host_memory import DEVICE, HOST
from plimsoll.service.worker.stacks.deepspeed.accelerator import TracedAccelerator


@pytest.fixture
def accelerator():
    with FakeTensorMode():
        yield TracedAccelerator()


def test_tensors_on_the_device_are_told_from_the_hosts(accelerator):
    there, here = torch.empty(3, device=accelerator.current_device_name()), torch.empty(3)
    assert accelerator.on_accelerator(there)
    assert not accelerator.on_accelerator(here)
    assert (there.device, here.device) == (DEVICE, HOST)


def test_pinning_copies_what_is_not_pinned_and_nothing_else(accelerator):
    tensor = torch.empty(3)
    pinned = accelerator.pin_memory(tensor)
    assert pinned is not tensor
    assert accelerator.pin_memory(pinned) is pinned
    assert accelerator.is_pinned(pinned[1:])
    assert not accelerator.is_pinned(tensor)


def test_an_empty_pinned_tensor_lies_on_the_host(accelerator):
    empty = accelerator.pin_empty(5, dtype=torch.float32)
    assert (empty.shape, empty.device, accelerator.is_pinned(empty)) == ((5,), HOST, True)


def test_flags_and_norms_are_made_on_the_device(accelerator):
    assert accelerator.ByteTensor([True]).device == DEVICE
    assert accelerator.FloatTensor([0.5]).dtype == torch.float32
