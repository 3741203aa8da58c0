"""Which device a run takes place on."""

from types import SimpleNamespace

import pytest
import torch

from plimsoll.service.ground.errors import NoSuitableDevice
from plimsoll.service.worker.devices.device import environment, find_device, usable_host_bytes

H100 = SimpleNamespace(name="NVIDIA H100 80GB HBM3", total_memory=85_000_000_000)
L4 = SimpleNamespace(name="NVIDIA L4", total_memory=24_000_000_000)


@pytest.fixture
def cards(monkeypatch):
    """Return a function that lets torch see these cards."""

    def see(*properties):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(properties))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(properties))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties[index])

    return see


def find(wanted="any", *, planned_gpu="h100-sxm-80gb", any_gpu_kind=False):
    return find_device(wanted, planned_gpu=planned_gpu, any_gpu_kind=any_gpu_kind)


def test_a_card_of_the_plan_s_kind_is_taken_with_all_that_are_like_it(cards):
    cards(H100, H100)
    device = find()
    assert (device.type, device.count, device.memory_bytes) == ("cuda", 2, 85_000_000_000)
    assert device.is_planned_kind


def test_a_card_of_another_kind_is_left_for_the_cpu_unless_any_kind_will_do(cards):
    cards(L4)
    assert find().is_cpu
    device = find(any_gpu_kind=True)
    assert (device.name, device.is_planned_kind) == ("NVIDIA L4", False)


def test_cards_that_differ_are_not_used_together(cards):
    cards(L4, H100)
    assert (find().count, find().index) == (1, 1)


def test_a_cpu_is_taken_where_it_is_asked_for(cards):
    cards(H100)
    device = find("cpu")
    assert (device.is_cpu, device.is_planned_kind, device.memory_bytes > 0) == (True, False, True)


@pytest.mark.parametrize(("seen", "told"), [((), "no accelerator"), ((L4,), "NVIDIA L4")])
def test_a_worker_without_the_plan_s_kind_says_what_it_has(cards, seen, told):
    cards(*seen)
    with pytest.raises(NoSuitableDevice, match=told) as refusal:
        find("gpu")
    assert refusal.value.pointer == "/device"


def test_a_process_may_take_no_more_than_it_is_limited_to(monkeypatch):
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (2**28, 2**28))
    assert usable_host_bytes() == 2**28


def test_what_a_measurement_depends_on_is_told(cards, monkeypatch):
    cards()
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    told = environment(find())
    assert told["allocator_settings"] == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert (told["torch"], told["driver"], told["is_planned_kind"]) == (torch.__version__, None, False)
