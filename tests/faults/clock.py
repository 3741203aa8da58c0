"""A clock that can be made to jump for real processes: a few lines of C, compiled for the test and preloaded."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_name("moved_clock.c")
COMPILER = shutil.which("cc") or shutil.which("gcc")
CANNOT_MOVE_CLOCKS = (
    None if COMPILER and sys.platform == "linux" else "a clock is moved by a C compiler's work on Linux"
)
"""Why the tests are skipped; None where they are not."""


class MovedClock:
    """The date of all processes that have its variables; monotonic clocks go on."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "moved-seconds"
        library = folder / "moved_clock.so"
        subprocess.run([str(COMPILER), "-O2", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
        self._file.write_bytes(struct.pack("=q", 0))
        self.variables = {"LD_PRELOAD": str(library), "MOVED_CLOCK_FILE": str(self._file)}

    def jump(self, hours: float) -> None:
        """Set the clock off by so much from the true one."""
        # In place, since it is mapped.
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", round(hours * 3600)))


@contextmanager
def moved_clock() -> Iterator[MovedClock]:
    """Yield a clock that every account of this machine can read: Postgres runs under one of its own."""
    folder = Path(f"/tmp/plimsoll-clock-{time.monotonic_ns()}")  # noqa: S108 - the name is nobody else's
    folder.mkdir(mode=0o755)
    try:
        yield MovedClock(folder)
    finally:
        shutil.rmtree(folder)
