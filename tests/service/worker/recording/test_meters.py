"""What the counters say; the CUDA ones through stand-ins for torch's and NVML's functions."""

import sys
from types import SimpleNamespace

import pytest
import torch

from plimsoll.service.worker.devices.device import Device
from plimsoll.service.worker.recording.ledger import Kind, Ledger
from plimsoll.service.worker.recording.meters import meter_of, nvml_figures


def ledger_of(*sizes):
    ledger = Ledger()
    for size in sizes:
        ledger.allocate(size, kind=Kind.PARAMETER, origin="weight")
    return ledger


def device(kind):
    return Device(type=kind, name=kind, memory_bytes=1, count=1, is_planned_kind=False)


@pytest.fixture
def card(monkeypatch):
    """Let torch count as if a card were there."""
    counted = {"allocated_bytes.all.peak": 3_000, "reserved_bytes.all.peak": 2 << 20, "num_ooms": 0}
    for name, function in {
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda: None,
        "memory_stats": lambda: counted,
        "mem_get_info": lambda: (70, 80),
        "current_device": lambda: 0,
        "get_device_properties": lambda _index: SimpleNamespace(uuid="abc"),
    }.items():
        monkeypatch.setattr(torch.cuda, name, function)


@pytest.fixture
def nvml(monkeypatch):
    """Return the calls that a stand-in for nvidia-ml-py was given."""
    calls = []
    stand_in = SimpleNamespace(
        nvmlInit=lambda: calls.append("init"),
        nvmlShutdown=lambda: calls.append("shutdown"),
        nvmlDeviceGetHandleByUUID=calls.append,
        nvmlDeviceGetComputeRunningProcesses=lambda _handle: [SimpleNamespace(pid=-1, usedGpuMemory=7)],
        nvmlDeviceGetMemoryInfo=lambda _handle: SimpleNamespace(used=11),
    )
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)
    return calls


def test_a_cpu_is_measured_by_the_ledger_in_the_grains_of_cuda_s_allocator():
    meter = meter_of(device("cpu"))
    meter.start()
    reading = meter.reading(ledger_of(100, 600))
    # 512 and 1,024; a small segment is 2 MiB.
    assert (reading["peak_bytes"], reading["reserved_bytes"]) == (1_536, 2 << 20)


@pytest.mark.usefixtures("card", "nvml")
def test_a_card_is_measured_by_its_own_counters_and_what_the_ledger_missed_is_told():
    meter = meter_of(device("cuda"))
    meter.start()
    reading = meter.reading(ledger_of(100, 600))
    assert (reading["peak_bytes"], reading["reserved_bytes"], reading["untracked_bytes"]) == (3_000, 2 << 20, 1_464)
    assert reading["statistics"]["num_ooms"] == 0
    assert reading["card"] == {"free_bytes": 70, "total_bytes": 80}


@pytest.mark.usefixtures("card")
def test_nvml_tells_the_card_s_bytes_where_it_does_not_know_this_process(nvml):
    assert nvml_figures(0) == {"process_bytes": None, "card_used_bytes": 11}
    assert nvml == ["init", b"GPU-abc", "shutdown"]


def test_without_nvidia_ml_py_nothing_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml_figures(0) is None
