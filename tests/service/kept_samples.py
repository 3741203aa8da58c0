"""What `service.running.kept_process` keeps in its tests."""

import os
import signal
import sys
import time
from pathlib import Path

from plimsoll.service.ground.settings import Settings

LOADED_BY = os.getpid()


def wait(settings: Settings) -> None:
    """Say who loaded this module and who runs it, and wait; SIGTERM ends it with status 7."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
    wait_unprepared(settings)


def wait_unprepared(settings: Settings) -> None:
    """Do the same, and let SIGTERM end it as the kernel does."""
    with Path(os.environ["SAID"]).open("a") as said:
        said.write(f"{LOADED_BY} {os.getpid()}\n")
    while True:
        # Not `signal.pause`: what arrives right before it would not end it.
        time.sleep(0.05)


def give_up(settings: Settings) -> None:
    """End with status 3."""
    sys.exit(3)


def end(settings: Settings) -> None:
    """Do nothing."""
