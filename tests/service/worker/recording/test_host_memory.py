import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from plimsoll.service.worker.recording.host_memory import DEVICE, HOST, host_apart, is_host, on_host


def test_what_is_made_inside_lies_on_the_host_until_something_says_otherwise():
    with on_host():
        assert is_host()
        with on_host(False):
            assert not is_host()
    assert not is_host()


def test_a_device_counts_only_where_the_host_is_apart():
    assert not is_host(HOST)
    with host_apart():
        assert is_host(HOST)
        assert not is_host(DEVICE)
    assert not is_host(HOST)


def test_tensors_are_made_on_the_device_where_the_host_is_apart():
    with FakeTensorMode(), host_apart():
        made, moved = torch.empty(2), torch.empty(2).to("cpu")
    assert (made.device, moved.device) == (DEVICE, HOST)
    # A move is a copy: the two are different memory.
    assert made.untyped_storage()._cdata != moved.untyped_storage()._cdata
