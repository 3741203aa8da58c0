"""A process that is back at once: `python -m plimsoll.service.running.kept_process MODULE:FUNCTION`.

Most of a start is loading modules, which takes seconds of processor time and many times as long where others want
the processor, too. So a keeper loads them once and forks: the copy calls `FUNCTION(Settings())` and does the work,
the keeper does nothing but wait. Where the copy is killed or crashes, the keeper forks again, and nothing is loaded.
That is safe because importing a module opens nothing and starts no thread of ours. An end that the copy chose itself
ends the keeper, with the same status.

The function is named, not imported: whoever starts this knows what it starts.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

import structlog

from plimsoll.service.ground.settings import Settings
from plimsoll.service.observability.logging import configure_logging
from plimsoll.service.running.processes import die_with_parent
from plimsoll.service.running.restarts import Restarts

FIRST_RESTART_SECONDS = 0.1
LONGEST_RESTART_SECONDS = 5.0
GOOD_WHILE_SECONDS = 15.0
"""Nothing is loaded for a copy: one that dies at its start, again and again, costs a tenth of a second each time."""
LOOK_SECONDS = 0.1
"""How often a keeper that pauses looks for a signal; macOS has no `sigtimedwait`."""

log = structlog.get_logger(__name__)

_STOP = (signal.SIGTERM, signal.SIGINT)
_AWAITED = (*_STOP, signal.SIGCHLD)
_SIGNALLED = 128
"""What shells add to a signal's number for the exit status of what it ended."""


def keep(serve: Callable[[], None]) -> int:
    """Let a copy of this process do `serve`, another one whenever a signal ended it; return the exit status.

    SIGTERM and SIGINT are passed on, and the copy's end is the end then. A copy never outlives its keeper. Call it
    from the main thread, with all that `serve` needs loaded, and from nothing that must not happen twice: it returns
    in the copy, too.
    """
    # What is loaded stays: the collector of a copy need not touch it, and the pages stay shared.
    gc.collect()
    gc.freeze()
    keeper = os.getpid()
    # Taken one by one below, so that none comes between a fork and the knowledge of it.
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    restarts = Restarts(
        first_seconds=FIRST_RESTART_SECONDS,
        longest_seconds=LONGEST_RESTART_SECONDS,
        good_while_seconds=GOOD_WHILE_SECONDS,
    )
    while True:
        started_at = time.monotonic()
        copy = os.fork()
        if copy == 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
            die_with_parent(keeper, signal.SIGKILL)
            serve()
            return 0
        status, was_told_to_stop = _wait_for(copy)
        if was_told_to_stop or status >= 0:
            return status if status >= 0 else _SIGNALLED - status
        log.warning("process replaced", process=copy, ended_by=signal.Signals(-status).name)
        if _is_told_to_stop_within(restarts.pause_seconds(time.monotonic() - started_at)):
            return 0


def _is_told_to_stop_within(seconds: float) -> bool:
    """Return whether a signal to stop came meanwhile; they are blocked, and wait to be taken."""
    ends_at = time.monotonic() + seconds
    while not signal.sigpending().intersection(_STOP):
        left_seconds = ends_at - time.monotonic()
        if left_seconds <= 0:
            return False
        time.sleep(min(left_seconds, LOOK_SECONDS))
    return True


def _wait_for(copy: int) -> tuple[int, bool]:
    """Return a copy's exit status, that of a signal below zero, and whether it was told to stop before."""
    was_told_to_stop = False
    while True:
        number = signal.sigwait(_AWAITED)
        if number in _STOP:
            was_told_to_stop = True
            os.kill(copy, number)
            continue
        ended, status = os.waitpid(copy, os.WNOHANG)
        if ended == copy:
            return os.waitstatus_to_exitcode(status), was_told_to_stop


def main(arguments: Sequence[str]) -> int:
    """Load what is named, and keep it running."""
    module_name, _, function_name = arguments[0].partition(":")
    run: Callable[[Settings], None] = getattr(importlib.import_module(module_name), function_name)
    configure_logging(Settings().log_level)
    return keep(lambda: run(Settings()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
