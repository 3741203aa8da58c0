"""Several real ranks on this machine: started together, and ended together."""

from __future__ import annotations

import io
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

from plimsoll.service.ground.errors import RankFailed
from plimsoll.service.running.processes import launched
from plimsoll.service.worker.devices.device import Device
from plimsoll.service.worker.processes.termination import termination_raises, termination_waits
from plimsoll.service.worker.proofs.device.rank_logs import last_words, log_file
from plimsoll.service.worker.proofs.device.rank_process import TASK_FILE, result_file
from plimsoll.service.worker.tasks import Report

LOOK_SECONDS = 0.1
# A rank that waits longer for the others has lost one.
PATIENCE_SECONDS = 600.0
# Less than a task has between being told to end and being killed (service/worker/processes/child.py).
LAST_WORDS_SECONDS = 0.5
DRAIN_SECONDS = 2.0
LOOPBACK = "lo"


def run_ranks(
    request: Mapping[str, Any],
    device: Device,
    *,
    ranks: int,
    memory_bytes: int | None,
    report: Report,
    patience_seconds: float = PATIENCE_SECONDS,
) -> list[dict[str, Any]]:
    """Return what each of several processes measured, in order of rank.

    `memory_bytes` limits each of them. Once one is out of memory the others, which
    would wait for it, are ended, and only its account is returned. Raises
    `RankFailed` when one ends without an account, as those do that wait for another
    longer than `patience_seconds`. Then, and when this process is told to end
    meanwhile, every rank's last words go to stderr, and no rank lives on.
    """
    with tempfile.TemporaryDirectory(prefix="plimsoll-ranks-") as name, termination_raises():
        folder = Path(name)
        task = {
            "request": request,
            "device": asdict(device),
            "memory_bytes": memory_bytes,
            "patience_seconds": patience_seconds,
        }
        (folder / TASK_FILE).write_text(json.dumps(task))
        processes: list[subprocess.Popen[bytes]] = []
        listening: threading.Thread | None = None
        try:
            # Told to end between the start of one and the next, this process would leave the first behind.
            with termination_waits():
                for rank in range(ranks):
                    processes.append(_start(folder, rank, ranks))
                # Thread and pipe end with the process.
                listening = threading.Thread(target=_pass_on, args=(processes[0].stdout, report), daemon=True)
                listening.start()
            _await_accounts(processes, folder)
        except (RankFailed, SystemExit):
            _ask_to_end(processes)
            sys.stderr.write(last_words(folder, ranks) + "\n")
            raise
        finally:
            for process in processes:
                process.kill()
                process.wait()
            # Not for ever: what a rank started may still hold the pipe.
            if listening is not None:
                listening.join(DRAIN_SECONDS)
        accounts = [
            json.loads(file.read_text()) for rank in range(ranks) if (file := result_file(folder, rank)).exists()
        ]
    out_of_memory = [account for account in accounts if account["out_of_memory"]]
    return out_of_memory or accounts


def _start(folder: Path, rank: int, ranks: int) -> subprocess.Popen[bytes]:
    numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    command = [sys.executable, "-m", "plimsoll.service.worker.proofs.device.rank_process", str(folder)]
    with log_file(folder, rank).open("wb") as log:
        return subprocess.Popen(
            launched(command, signal_number=signal.SIGKILL),
            env={**os.environ, "GLOO_SOCKET_IFNAME": LOOPBACK, "OMP_NUM_THREADS": _threads(ranks), **numbers},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if rank == 0 else log,
            stderr=log,
        )


def _threads(ranks: int) -> str:
    """Return the threads of one rank: its share of the processors."""
    return str(max(len(os.sched_getaffinity(0)) // ranks, 1))


def _await_accounts(processes: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """Return when all ranks have left their accounts or one is out of memory; raise `RankFailed` for one that did not.

    What has left its account is done, whether or not it ends: libraries crash and
    hang while they are unloaded.
    """
    waiting = set(range(len(processes)))
    while waiting:
        for rank in sorted(waiting):
            # Before the file is looked for, which may be the last that a rank does.
            code = processes[rank].poll()
            file = result_file(folder, rank)
            if file.exists():
                waiting.remove(rank)
                if json.loads(file.read_text())["out_of_memory"]:
                    return
            elif code is not None:
                raise RankFailed(
                    f"Rank {rank} of {len(processes)} ended with status {code}; the log has each rank's last words."
                )
        time.sleep(LOOK_SECONDS)


def _ask_to_end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Let every rank that still runs write down where it stands."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + LAST_WORDS_SECONDS
    while None in [process.poll() for process in processes] and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)


def _pass_on(lines: IO[bytes] | None, report: Report) -> None:
    with lines or io.BytesIO() as messages:
        for line in messages:
            done, total, unit, message = json.loads(line)
            report(done, total, unit, message)
