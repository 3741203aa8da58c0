import torch

from plimsoll.service.worker.stacks.deepspeed.drives import TracedDrives


def test_what_was_read_and_written_has_ended_once_it_is_waited_for():
    drives = TracedDrives(block_size=1)
    assert drives.async_pread(torch.empty(1), "path", 0) == drives.async_pwrite(torch.empty(1), "path", 0) == 0
    assert [drives.wait(), drives.wait()] == [2, 0]


def test_a_locked_buffer_has_the_format_of_its_example():
    buffer = TracedDrives().new_cpu_locked_tensor(7, torch.empty(0, dtype=torch.bfloat16))
    assert (buffer.numel(), buffer.dtype) == (7, torch.bfloat16)
