"""Tasks for the tests, run in child processes: well-behaved ones and all kinds of bad ones."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import stat
import sys
import time
from pathlib import Path


def echo(request, report):
    return {"request": dict(request), "pid": os.getpid()}


def play(request, report):
    """Do the sample task that the request names."""
    return globals()[request["task"]](request, report)


def validate(request, report):
    return {
        "level": request["level"],
        "predicted": {"peak_bytes": 105},
        "measured": {"peak_bytes": 100},
        "relative_error": 0.05,
    }


def list_two_accelerators(request, report):
    return {"accelerators": [{"kind": "l4"}, {"kind": "h100"}, {"kind": "h100"}]}


def record(request, report):
    """Sleep, then append one line to a file: the mark that this attempt came to its end."""
    time.sleep(request.get("seconds", 0))
    with Path(request["file"]).open("a") as file:
        file.write(f"{request['number']}\n")
    return {"number": request["number"]}


def count(request, report):
    for done in range(request["steps"] + 1):
        report(done, request["steps"], "steps", f"step {done}")
        time.sleep(request.get("seconds", 0))
    return {"steps": request["steps"]}


def refuse(request, report):
    from plimsoll.planners.ground.errors import NotYetAvailable

    raise NotYetAvailable("That is not traced yet.")


def work_half_way(request, report):
    """Begin a file, wait for ever, and clear it away when asked to end."""
    from plimsoll.service.worker.processes.termination import termination_raises

    work = Path(request["work_file"])
    with termination_raises():
        try:
            work.write_text("half")
            wait(request, report)
        finally:
            work.unlink()


def wait(request, report):
    """Write the process id to a file, and wait until the file `until` exists or for ever."""
    if "pid_file" in request:
        path = Path(request["pid_file"])
        path.with_suffix(".new").write_text(str(os.getpid()))
        path.with_suffix(".new").rename(path)
    while not ("until" in request and Path(request["until"]).exists()):
        time.sleep(0.02)
    return {"pid": os.getpid(), "waited": True}


def ignore_sigterm(request, report):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report(1, 2, "", "deaf")
    return wait(request, report)


def leave_a_descendant(request, report):
    import subprocess  # Here, as it takes as long to load as all the rest: most tasks do without.

    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    return {"pid": sleeper.pid}


def allocate(request, report):
    block = bytearray(request["bytes"])
    return {"bytes": len(block)}


def hold(request, report):
    """Touch every page of so many bytes."""
    return {"bytes": len(b"x" * request["bytes"])}


def raise_value_error(request, report):
    sys.stdout.write("before the error\n")
    raise ValueError("the scale is zero")


def raise_invalid_question(request, report):
    from plimsoll.planners.ground.errors import InvalidQuestion

    raise InvalidQuestion("The model has no layers.", pointer="/model")


def crash(request, report):
    sys.stderr.write("about to crash\n")
    sys.stderr.flush()
    ctypes.string_at(0)


def crash_at_first(request, report):
    """Crash unless the file is there already."""
    path = Path(request["file"])
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGSEGV)
    return {"attempts": 2}


def exit_silently(request, report):
    os._exit(3)


def print_a_lot(request, report):
    for number in range(1_000):
        sys.stdout.write(f"line {number}\n")
    sys.stdout.flush()
    os.write(1, b"straight to the descriptor\n")
    return {"printed": True}


def write_garbage(request, report):
    os.write(_channel(), b"this is no JSON\n")
    return {}


def write_without_end(request, report):
    while True:
        os.write(_channel(), b"x" * 2**16)


def answer_twice(request, report):
    os.write(_channel(), json.dumps({"result": {}}).encode() + b"\n")
    return {"second": True}


def answer_and_crash(request, report):
    os.write(_channel(), json.dumps({"result": {"done": True}}).encode() + b"\n")
    os.abort()


def return_text(request, report):
    return "no object"


def return_nan(request, report):
    return {"relative_error": float("nan")}


def return_nul(request, report):
    return {"name": "a\0b"}


def return_bytes(request, report):
    return {"text": "x" * request["bytes"]}


def read_environment(request, report):
    return {
        "database_url": os.environ.get("PLIMSOLL_DATABASE_URL"),
        "oom": Path("/proc/self/oom_score_adj").read_text(),
    }


def _channel() -> int:
    """Return the descriptor that leads to the worker, which only the child's own code should know."""
    return next(number for number in range(3, 64) if _is_pipe(number))


def _is_pipe(number: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(number).st_mode)
    except OSError:
        return False
