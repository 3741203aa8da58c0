"""Kept processes, with real ones."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.service.running.test_supervisor import are_gone, wait_for

PATIENCE_SECONDS = 180.0


class Kept:
    """A keeper of one of the samples, and what its copies said."""

    def __init__(self, folder, function):
        self.said = folder / "said"
        self.said.touch()
        command = [
            sys.executable,
            "-m",
            "plimsoll.service.running.kept_process",
            f"tests.service.kept_samples:{function}",
        ]
        self.process = subprocess.Popen(command, env={**os.environ, "SAID": str(self.said)})

    def copies(self, count):
        """Return so many copies' process ids, once they ran; the keeper alone loaded what they run."""
        wait_for(lambda: self.said.read_text().count("\n") >= count, PATIENCE_SECONDS)
        loaded_by, copies = zip(*(line.split() for line in self.said.read_text().splitlines()), strict=True)
        assert set(loaded_by) == {str(self.process.pid)}
        return [int(copy) for copy in copies]


@pytest.fixture
def kept(tmp_path):
    running = Kept(tmp_path, "wait")
    yield running
    running.process.kill()
    running.process.wait()


def test_a_killed_copy_is_replaced_by_another_that_loads_nothing(kept):
    (first,) = kept.copies(1)
    os.kill(first, signal.SIGKILL)
    _, second = kept.copies(2)
    assert second != first
    assert kept.process.poll() is None


def test_a_keeper_that_is_told_to_stop_tells_its_copy_and_ends_as_it_did(kept):
    kept.copies(1)
    kept.process.send_signal(signal.SIGTERM)
    assert kept.process.wait(PATIENCE_SECONDS) == 7


def test_a_copy_that_dies_of_being_told_to_stop_is_not_replaced(tmp_path):
    kept = Kept(tmp_path, "wait_unprepared")
    kept.copies(1)
    kept.process.send_signal(signal.SIGTERM)
    assert kept.process.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM


def test_a_copy_does_not_outlive_its_keeper(kept):
    copy = psutil.Process(kept.copies(1)[0])
    kept.process.kill()
    wait_for(lambda: are_gone([copy]), PATIENCE_SECONDS)


@pytest.mark.parametrize(("function", "status"), [("give_up", 3), ("end", 0)])
def test_an_end_that_the_copy_chose_is_the_keepers(tmp_path, function, status):
    assert Kept(tmp_path, function).process.wait(PATIENCE_SECONDS) == status
