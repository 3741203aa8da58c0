"""What is told of the allocation for which there was no memory."""

import torch

from plimsoll.service.worker.processes.child_main import is_out_of_memory
from plimsoll.service.worker.recording.ledger import Kind, Ledger
from plimsoll.service.worker.recording.run_record import Record, described_failure


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
