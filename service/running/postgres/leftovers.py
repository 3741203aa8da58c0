"""What an earlier owner of a data folder may have left running in it.

Every process of a PostgreSQL server has the data folder as its working
directory, so the process table tells the truth that a pid file may not: a zombie
has no working directory, and a number that now belongs to another has another one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from plimsoll.service.ground.errors import DatabaseUnavailable

# A fast shutdown waits for a checkpoint, not for clients.
_SHUTDOWN_TIMEOUT_SECONDS = 30.0
# Backends without their postmaster go by themselves as soon as they look up from their work.
_ORPHAN_TIMEOUT_SECONDS = 2.0
_QUIT_TIMEOUT_SECONDS = 5.0
_POLL_SECONDS = 0.02


def clear_leftovers(data: Path) -> None:
    """End every server process in a data folder, then remove its pid file.

    Only for the owner of the folder, who knows that no server there is wanted. Raises
    DatabaseUnavailable if one of them cannot be ended.
    """
    postmaster = _postmaster(data)
    if postmaster is not None:
        _signal([postmaster], signal.SIGINT)
        _wait_until_gone(data, _SHUTDOWN_TIMEOUT_SECONDS)
    else:
        _wait_until_gone(data, _ORPHAN_TIMEOUT_SECONDS)
    _signal(server_processes(data), signal.SIGQUIT)
    _wait_until_gone(data, _QUIT_TIMEOUT_SECONDS)
    if left := server_processes(data):
        raise DatabaseUnavailable(f"Processes of an earlier database in {data} do not end: {left}. End them by hand.")
    (data / "postmaster.pid").unlink(missing_ok=True)


def server_processes(data: Path) -> list[int]:
    """Return the ids of the PostgreSQL processes at work in a data folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # Processes come and go while we look, and those of others do not tell.
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == data and _name(process) == "postgres":
                found.append(int(process.name))
    return found


def _postmaster(data: Path) -> int | None:
    """Return the one process that is not a child of another of them, if it has any."""
    processes = server_processes(data)
    parents = set()
    for process in processes:
        with contextlib.suppress(OSError):
            parents.add(_parent(process))
    heads = [process for process in processes if process in parents]
    if heads:
        return heads[0]
    # One that has only just begun, or is nearly done, has no children.
    with contextlib.suppress(OSError, ValueError):
        named = int((data / "postmaster.pid").read_text(errors="replace").split("\n", 1)[0])
        return named if named in processes else None
    return None


def _name(process: Path) -> str:
    return (process / "comm").read_text().strip()


def _parent(process: int) -> int:
    # "pid (name) state ppid …", and the name may hold anything but a newline.
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def _signal(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def _wait_until_gone(data: Path, timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    while server_processes(data) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
