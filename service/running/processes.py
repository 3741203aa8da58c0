"""Child processes that never outlive their parent, and what a child does before it becomes a program.

`launched` puts this module, run as a script, before a command: a fresh process with one
thread takes an identity on, asks to be ended with its parent, and becomes the command.
Doing so between fork and exec would run Python in a copy of a process with threads,
where a lock that another thread held is never released.

As a script it imports the standard library alone, for it runs without the site's packages.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h
_CLONE_NEWUSER = 0x10000000  # linux/sched.h

CANNOT_LAUNCH = 126
"""The exit status of a child that could not become its command: the shell's for "found, but not executable"."""

# Namespaces are counted for each user, and a dead one is given back late: user_namespaces(7).
_NAMESPACE_WAIT_SECONDS = 5.0
_NAMESPACE_RETRY_SECONDS = 0.1


def die_with_parent(parent: int, number: int = signal.SIGTERM) -> None:
    """Ask the kernel to signal this process when its parent dies; end it now where that has happened.

    `parent` is the process id of the one that started this one. The kernel watches the thread that
    did so: start children from one that lives as long as the process. Only Linux knows this;
    elsewhere only a parent that is gone already is noticed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def launched(
    command: Sequence[str],
    *,
    signal_number: int = signal.SIGTERM,
    identity: tuple[int, int] | None = None,
    in_namespace: bool = False,
) -> list[str]:
    """Return the command that becomes `command` once what is asked for is done; its process id stays the same.

    `signal_number` is what it gets when this process dies. `identity` is the user and the group
    that it runs as: its own ones or, for `in_namespace`, what its own are called in a user namespace made for it. A
    child that cannot do so says why on stderr and ends with `CANNOT_LAUNCH`.
    """
    options = ["--parent", str(os.getpid()), "--signal", str(int(signal_number))]
    if identity is not None:
        options += ["--namespace" if in_namespace else "--identity", *map(str, identity)]
    return [sys.executable, "-I", "-S", __file__, *options, "--", *command]


def main(arguments: Sequence[str]) -> int:
    """Do what is asked for and become the command; return only where that fails."""
    parser = argparse.ArgumentParser(prog="launch")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--signal", type=int, required=True)
    parser.add_argument("--identity", type=int, nargs=2)
    parser.add_argument("--namespace", type=int, nargs=2)
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args(arguments)
    try:
        if asked.identity is not None:
            _take_identity(*asked.identity)
        if asked.namespace is not None:
            _enter_namespace(*asked.namespace)
        # After the change of identity, which forgets it.
        die_with_parent(asked.parent, asked.signal)
        # Python ignores these two for itself, and what is ignored stays so in the program.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(asked.command[0], asked.command)  # noqa: S606 - a list of arguments wants no shell
    except OSError as error:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{asked.command[0]} could not be started: {error}\n")
            sys.stderr.flush()
    return CANNOT_LAUNCH


def _take_identity(user_id: int, group_id: int) -> None:
    os.setgroups([])
    os.setgid(group_id)
    os.setuid(user_id)


def _enter_namespace(user_id: int, group_id: int) -> None:
    """Make a user namespace in which this process's own ids read as the given ones."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "only Linux has user namespaces")
    user_outside, group_outside = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    deadline = time.monotonic() + _NAMESPACE_WAIT_SECONDS
    while libc.unshare(_CLONE_NEWUSER) != 0:
        number = ctypes.get_errno()
        if number not in (errno.ENOSPC, errno.EAGAIN) or time.monotonic() > deadline:
            raise OSError(number, f"no user namespace may be made ({os.strerror(number)})")
        time.sleep(_NAMESPACE_RETRY_SECONDS)
    # The kernel wants this before an unprivileged process may write its groups.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/gid_map").write_text(f"{group_id} {group_outside} 1")
    Path("/proc/self/uid_map").write_text(f"{user_id} {user_outside} 1")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
