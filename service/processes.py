"""Child processes that never outlive their parent, and what a child does between fork and exec."""

from __future__ import annotations

import ctypes
import functools
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


@functools.cache
def libc() -> ctypes.CDLL:
    """Return the C library; call it before a fork, so that nothing is to be loaded after it."""
    return ctypes.CDLL(None, use_errno=True)


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Ask the kernel to signal this process when its parent dies; call it between fork and exec.

    The parent is the thread that forked, so fork from one that lives as long as
    the process. Only Linux knows this; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        libc().prctl(PR_SET_PDEATHSIG, number)
