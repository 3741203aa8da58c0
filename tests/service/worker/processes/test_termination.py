"""SIGTERM within a job."""

import signal
import threading

import pytest

from plimsoll.service.worker.processes.termination import termination_raises


def test_the_signal_becomes_an_exit_and_the_handler_is_put_back():
    before = signal.getsignal(signal.SIGTERM)
    # 128 + 15, as shells count it.
    with pytest.raises(SystemExit) as caught, termination_raises():
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_off_the_main_thread_nothing_changes():
    seen = []

    def look():
        with termination_raises():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]
