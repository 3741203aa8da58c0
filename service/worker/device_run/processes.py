"""Several real ranks on this machine: started together, and ended together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from service.processes import launched
from service.worker.device_run.devices import Device
from service.worker.device_run.rank_process import TASK_FILE, result_file
from service.worker.dry_run.step import Report

LOOK_SECONDS = 0.1
LOOPBACK = "lo"


class RankEnded(RuntimeError):
    """A rank ended without an account of itself."""


def run_ranks(
    request: Mapping[str, Any], device: Device, *, ranks: int, memory_bytes: int | None, report: Report
) -> list[dict[str, Any]]:
    """Return what each of several processes measured, in order of rank.

    `memory_bytes` limits each of them. Once one is out of memory the others, which
    would wait for it, are ended, and only its account is returned. Raises
    `RankEnded` when one ends without a word.
    """
    with tempfile.TemporaryDirectory(prefix="plimsoll-ranks-") as name:
        folder = Path(name)
        task = {"request": request, "device": asdict(device), "memory_bytes": memory_bytes}
        (folder / TASK_FILE).write_text(json.dumps(task))
        processes = [_start(folder, rank, ranks) for rank in range(ranks)]
        # Thread and pipe end with the process.
        listening = threading.Thread(target=_pass_on, args=(processes[0].stdout, report), daemon=True)
        listening.start()
        try:
            _wait(processes, folder)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
            listening.join()
            if processes[0].stdout is not None:
                processes[0].stdout.close()
        accounts = [
            json.loads(file.read_text()) for rank in range(ranks) if (file := result_file(folder, rank)).exists()
        ]
    failed = [account for account in accounts if account["out_of_memory"]]
    return failed or accounts


def _start(folder: Path, rank: int, ranks: int) -> subprocess.Popen[bytes]:
    numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    command = [sys.executable, "-m", "service.worker.device_run.rank_process", str(folder)]
    return subprocess.Popen(
        launched(command, signal_number=signal.SIGKILL),
        env={**os.environ, "GLOO_SOCKET_IFNAME": LOOPBACK, "OMP_NUM_THREADS": _threads(ranks), **numbers},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if rank == 0 else sys.stderr,
    )


def _threads(ranks: int) -> str:
    """Return the threads of one rank: its share of the processors."""
    return str(max(len(os.sched_getaffinity(0)) // ranks, 1))


def _wait(processes: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """Return when all are done or one is out of memory."""
    while True:
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code is None:
                continue
            file = result_file(folder, rank)
            if code != 0 or not file.exists():
                raise RankEnded(f"Rank {rank} of {len(processes)} ended with status {code}; the log says why.")
            if json.loads(file.read_text())["out_of_memory"]:
                return
        if None not in codes:
            return
        time.sleep(LOOK_SECONDS)


def _pass_on(lines: IO[bytes] | None, report: Report) -> None:
    for line in lines or ():
        done, total, unit, message = json.loads(line)
        report(done, total, unit, message)
