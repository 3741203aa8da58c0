"""One rank of several real ones: `python -m plimsoll.service.worker.proofs.device.rank_process FOLDER`.

RANK, LOCAL_RANK and WORLD_SIZE are set as torchrun sets them, so that torchrun
can start the ranks as well. FOLDER holds `task.json`; the ranks find each other
through a file there, not over a port that others could reach, and each leaves
`rank<N>.json`. Rank 0 tells its progress on stdout, a JSON line at a time; whatever else
is printed goes to stderr, and so does the stack of a rank that is told to end.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist

from plimsoll.service.worker.devices.device import Device
from plimsoll.service.worker.processes.child_main import take_stdout
from plimsoll.service.worker.proofs.device.running import run_rank
from plimsoll.service.worker.proofs.refusals.every import proved_job
from plimsoll.service.worker.tasks import Report

TASK_FILE = "task.json"
MEETING_FILE = "meeting"
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def main(arguments: Sequence[str]) -> int:
    """Run this rank and leave its account."""
    # Python's own handlers do not run while a rank waits for another in native code.
    faulthandler.register(signal.SIGTERM, all_threads=False, chain=True)
    channel = take_stdout()
    folder = Path(arguments[0])
    task: dict[str, Any] = json.loads((folder / TASK_FILE).read_text())
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if task["memory_bytes"] is not None:
        _limit_memory(task["memory_bytes"])
    device = Device(**task["device"])
    if not device.is_cpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    patience = timedelta(seconds=task["patience_seconds"])
    with real_group(folder, device, rank=rank, ranks=ranks, patience=patience):
        account = _account_of(task["request"], device, rank, _reporter(channel) if rank == 0 else _keep_silent)
        # Before the group is left: others may wait in it for ever, where memory ran out here.
        _leave(account, result_file(folder, rank))
    return 0


@contextmanager
def real_group(folder: Path, device: Device, *, rank: int, ranks: int, patience: timedelta) -> Iterator[None]:
    """Join the group of all ranks; a rank that waits longer than `patience` for the others raises."""
    meeting = f"file://{folder / MEETING_FILE}"
    dist.init_process_group(BACKENDS[device.type], init_method=meeting, rank=rank, world_size=ranks, timeout=patience)
    try:
        yield
    finally:
        dist.destroy_process_group()


def result_file(folder: Path, rank: int) -> Path:
    """Return where a rank leaves its account."""
    return folder / f"rank{rank}.json"


def _leave(account: Mapping[str, Any], file: Path) -> None:
    unfinished = file.with_suffix(".part")
    unfinished.write_text(json.dumps(account))
    unfinished.rename(file)  # whoever looks sees all of it or nothing


def _account_of(request: Mapping[str, Any], device: Device, rank: int, report: Report) -> dict[str, Any]:
    job, stack = proved_job(request)
    (stage,) = job.deciding_stages  # a pipeline's stages are run one at a time, and not here
    return run_rank(job, stack, stage, device, rank=rank, report=report)


def _reporter(channel: IO[bytes]) -> Report:
    def report(done: int, total: int, unit: str, message: str) -> None:
        channel.write(json.dumps([done, total, unit, message]).encode() + b"\n")
        channel.flush()

    return report


def _keep_silent(done: int, total: int, unit: str, message: str) -> None:
    """Say nothing: one rank's progress is that of all."""


def _limit_memory(memory_bytes: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
