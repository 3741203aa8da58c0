"""One rank's step for real, on the CPU, against the same step on fake tensors."""

import pytest
import torch

from plimsoll.planners.ground.errors import InvalidModelConfig
from plimsoll.service.worker.devices.device import find_device
from plimsoll.service.worker.processes.child_main import is_out_of_memory
from plimsoll.service.worker.proofs.device.running import Record, described_failure, held_bytes, kept_bytes, run_rank
from plimsoll.service.worker.recording.ledger import Kind, Ledger
from plimsoll.service.worker.stacks.found import find_stack
from plimsoll.service.worker.training.rank import process_group_of
from tests.service.worker.cases import config, job, traced

# What the CUDA kernel of flash attention keeps and the CPU's does not: a seed and an offset, 16 and 8 bytes, a layer.
RANDOM_STATE_BYTES = 2 * 24


def ran(**changes):
    wanted = job(**changes)
    device = find_device("cpu", planned_gpu="h100-sxm-80gb", any_gpu_kind=False)
    (stage,) = wanted.deciding_stages
    with process_group_of(wanted.world_size):
        return run_rank(wanted, find_stack(wanted.framework), stage, device, rank=0, report=lambda *_progress: None)


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"recompute": "full"},
        {"framework": "fsdp2", "data_parallel": 2, "tensor_parallel": 2, "recompute": "selective"},
        {"framework": "ddp", "zero_stage": 0},
        {"framework": "reference", "zero_stage": 1},
        {"framework": "megatron", "zero_stage": 1},
        {"method": "lora"},
        {"fused_cross_entropy": True},
    ],
)
def test_a_real_rank_holds_and_keeps_what_the_traced_one_does(case):
    account, ledger = ran(**case), traced(**case)
    assert account["held"] == held_bytes(ledger)
    seeds = 0 if case.get("recompute") == "full" else RANDOM_STATE_BYTES
    assert account["kept_for_backward_bytes"] == kept_bytes(ledger) - seeds
    # Each seed and offset is rounded up to 512 bytes, and at most both of both layers are alive at the peak.
    assert 0 <= ledger.peak().allocated_bytes - account["peak_bytes"] <= 4 * 512
    assert set(account["phase_seconds"]) == {"forward", "backward", "optimizer"}


def test_an_account_has_the_peak_in_parts():
    account = ran(config=config(tie_word_embeddings=True))
    assert sum(account["items"].values()) == account["peak_bytes"] <= account["reserved_bytes"]
    assert account["out_of_memory"] is None


def test_running_out_of_memory_is_told_with_the_allocation_that_failed():
    record = Record(ledger=Ledger())
    record.ledger.mark(1, "backward")
    piece = record.ledger.allocate(4096, kind=Kind.FORWARD_ACTIVATION, origin="mm")
    record.ledger.allocate(512, kind=Kind.FORWARD_ACTIVATION, origin="add")
    record.ledger.release(piece)
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity")
    told = described_failure(error, record)
    assert (told["wanted_bytes"], told["allocated_bytes"], told["peak_bytes_so_far"]) == (5 << 29, 512, 4608)
    assert (told["step"], told["phase"]) == (1, "backward")
    assert is_out_of_memory(error)


def test_the_cpu_allocator_s_own_words_are_understood():
    words = "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096"
    error = RuntimeError(f"{words} bytes. Error code 12 (Cannot allocate memory)")
    assert is_out_of_memory(error)
    told = described_failure(error, Record())
    assert (told["wanted_bytes"], told["phase"], told["operation"]) == (4096, "building", None)


def test_any_other_error_is_no_result():
    with pytest.raises(InvalidModelConfig):
        ran(config=config(hidden_act="nothing"))
