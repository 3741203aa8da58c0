"""Child processes that never outlive their parent."""

from __future__ import annotations

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Ask the kernel to signal this process when its parent dies; call it between fork and exec.

    The parent is the thread that forked, so fork from one that lives as long as
    the process. Only Linux knows this; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
