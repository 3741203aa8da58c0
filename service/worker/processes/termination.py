"""The signal to end, turned into an exception, so that what is half written is cleared away."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_STATUS_OF_A_SIGNAL = 128


@contextmanager
def termination_raises() -> Iterator[None]:
    """Make SIGTERM raise SystemExit within; where signals cannot be handled, off the main thread, change nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def termination_waits() -> Iterator[None]:
    """Hold a SIGTERM back until the end, so that it finds all that was started within.

    Off the main thread, where signals cannot be handled, it changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held_back: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: held_back.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if held_back:
            signal.raise_signal(signal.SIGTERM)


def _raise(number: int, _: FrameType | None) -> None:
    raise SystemExit(EXIT_STATUS_OF_A_SIGNAL + number)
