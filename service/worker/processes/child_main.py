"""The child process that does one job: `python -m plimsoll.service.worker.processes.child_main TARGET LIMITS`.

TARGET is a task's "module:function", LIMITS the JSON of `ChildLimits`. The
request comes as JSON on stdin; JSON lines leave on stdout, any number of
`{"progress": {...}}` and at the end either `{"result": {...}}` or
`{"error": {"code", "detail"}}`, with `"peak_host_bytes"` beside it. Whatever
else is printed, by the task or by a library, goes to stderr.

The child limits itself before it loads anything: doing so between fork and
exec would run Python in a copy of a process with threads.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from plimsoll.service.running.processes import die_with_parent
from plimsoll.service.worker.tasks import load_task

MAX_RESULT_BYTES = 16 * 2**20
"""A larger result is a file's business, not a row's."""
REPORT_INTERVAL_SECONDS = 0.1
"""Reports that follow sooner are dropped; a task may report every step of a tight loop."""
LOG_LINES = 80
"""Of what a task prints, the last lines that are kept with its error."""
MAX_TEXT_CHARACTERS = 2_000
"""Of an error's detail or a progress message."""
LARGEST_OOM_SCORE = 1_000
"""proc_pid_oom_score_adj(5): the kernel, short of memory, kills this process first."""
# What C and C++ libraries say when an allocation fails: torch's CPU allocator, libstdc++, libc.
OUT_OF_MEMORY_PHRASES = ("can't allocate memory", "bad_alloc", "Cannot allocate memory", "MemoryError")


def main(arguments: Sequence[str]) -> int:
    """Do one task; return the exit status: 0 after a result, 1 after an error."""
    target, limits = arguments[0], json.loads(arguments[1])
    die_with_parent(limits["parent_pid"], signal.SIGKILL)
    _limit_memory(limits["memory_bytes"], address_space=limits["limit_address_space"])
    channel = take_stdout()
    try:
        request = json.load(sys.stdin)
        result = load_task(target)(request, _Reporter(channel))
        line = _result_line(result)
    except Exception as error:  # noqa: BLE001
        # Whatever a task raises is the job's error, and is reported as such.
        _log_unforeseen(error)
        _write(channel, {"error": described_error(error), "peak_host_bytes": peak_host_bytes()})
        return 1
    channel.write(line)
    channel.flush()
    return 0


def _log_unforeseen(error: Exception) -> None:
    """Print the trace of an error, unless it is a refusal, of which the detail says everything."""
    from plimsoll.planners.ground.errors import PlimsollError

    if not isinstance(error, PlimsollError):
        import traceback

        traceback.print_exc()


def _limit_memory(memory_bytes: int, *, address_space: bool) -> None:
    # CUDA reserves far more address space than memory, so there only data counts.
    kind = resource.RLIMIT_AS if address_space else resource.RLIMIT_DATA
    hard = resource.getrlimit(kind)[1]
    limit = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    resource.setrlimit(kind, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        Path("/proc/self/oom_score_adj").write_text(str(LARGEST_OOM_SCORE))


def take_stdout() -> IO[bytes]:
    """Return the real stdout, and let everything that is printed from now on go to stderr."""
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return channel


class _Reporter:
    """The `report` that a task is given; drops what comes too fast."""

    def __init__(self, channel: IO[bytes]) -> None:
        self._channel = channel
        self._next_at = 0.0

    def __call__(self, done: int, total: int, unit: str, message: str) -> None:
        now = time.monotonic()
        if now < self._next_at and done != total:
            return
        self._next_at = now + REPORT_INTERVAL_SECONDS
        progress = {"done": int(done), "total": int(total), "unit": clean_text(unit), "message": clean_text(message)}
        _write(self._channel, {"progress": progress})


def _result_line(result: object) -> bytes:
    """Return the line that carries a result; ValueError if it is none that a JSON column can hold."""
    if not isinstance(result, Mapping):
        raise InvalidResult("invalid-result", f"The task returned {type(result).__name__}, not an object.")
    try:
        text = json.dumps({"result": dict(result)}, allow_nan=False, ensure_ascii=False)
        encoded = text.encode()
    except (TypeError, ValueError) as error:
        raise InvalidResult("invalid-result", f"The result is not JSON: {error}.") from error
    if "\\u0000" in text:
        raise InvalidResult("invalid-result", "The result holds the character NUL, which the database cannot store.")
    if len(encoded) > MAX_RESULT_BYTES:
        raise InvalidResult(
            "result-too-large", f"The result takes {len(encoded):,} bytes and the limit is {MAX_RESULT_BYTES:,}."
        )
    return encoded[:-1] + f', "peak_host_bytes": {peak_host_bytes()}}}\n'.encode()


class InvalidResult(ValueError):
    """What a task returned cannot be stored."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


def described_error(error: Exception) -> dict[str, str]:
    """Return the code and the detail of what a task raised."""
    from plimsoll.planners.ground.errors import PlimsollError

    if isinstance(error, (PlimsollError, InvalidResult)):
        return {"code": error.code, "detail": clean_text(str(error))}
    detail = clean_text(f"{type(error).__name__}: {error}")
    return {"code": "out-of-memory" if is_out_of_memory(error) else "task-failed", "detail": detail}


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception says that memory ran out, torch's included."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    name = type(error).__name__
    return name == "OutOfMemoryError" or any(phrase in str(error) for phrase in OUT_OF_MEMORY_PHRASES)


def peak_host_bytes() -> int | None:
    """Return the most memory this program held at once, or None where the system does not say.

    Read from /proc and not from getrusage, whose figure after an exec begins at
    the size of the process that started this one.
    """
    if sys.platform != "linux":
        return None
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def clean_text(text: str) -> str:
    """Return a text that a JSON column can hold, cut to a length that a person may read."""
    return text[:MAX_TEXT_CHARACTERS].replace("\0", "").encode(errors="replace").decode()


def _write(channel: IO[bytes], message: Mapping[str, Any]) -> None:
    channel.write(json.dumps(message).encode() + b"\n")
    channel.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
