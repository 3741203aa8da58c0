"""A soak: jobs and plans without end while API, worker and Postgres are killed at random, and the reckoning.

`python -m tests.faults.soak --jobs 1000`. The supervisor is the one of `plimsoll serve`, and nobody helps it;
only what the workers do is a stand-in. Every accepted job has to end once: finished, or failed as its kind has to.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.load.server import free_port
from plimsoll.service.ground.settings import Settings
from plimsoll.service.running.postgres.embedded import running_server_url
from plimsoll.service.running.supervisor import API, Child, Supervisor
from plimsoll.service.worker.processes.child import PROJECT_ROOT
from tests.faults.books import Books, is_settled, settle
from tests.faults.load import loaded
from tests.faults.processes import PATIENCE_SECONDS, answers_ready, wait_for

WORKERS = 2
CLIENTS = 4
STAND_IN = ("tests.faults.worker", "quantize", "1")
# A process of the service is found among the supervisor's children by this part of its command line.
PARTS = {"api": " ".join(API), "worker": " ".join(STAND_IN), "postgres": "postgres"}
STOP_SECONDS = 240.0
# What is still to be done once the last job was sent.
QUEUE_LIMIT = 100


@dataclass
class Report:
    """What was killed, what became of the jobs, and how long the service was away at the longest."""

    seconds: float
    books: Books
    plans: int
    refusals: int
    kills: Counter[str] = field(default_factory=Counter)
    recovery_seconds: dict[str, float] = field(default_factory=dict)
    """The longest after each part's death."""

    def __str__(self) -> str:
        killed = ", ".join(
            f"{part} {count} times (ready {self.recovery_seconds[part]:.1f} s after at the longest)"
            for part, count in sorted(self.kills.items())
        )
        return (
            f"soak of {self.seconds:.0f} s: {self.books}. {self.plans} plans stored as answered. Killed: {killed}. "
            f"{self.refusals} requests had to be sent again."
        )


class _SoakSupervisor(Supervisor):
    """The supervisor, with workers that do the stand-in."""

    def _planned_children(self, url: str) -> list[Child]:
        api, *workers = super()._planned_children(url)
        command = [sys.executable, "-m", *STAND_IN]
        return [api, *(Child(name=worker.name, command=command, environment=worker.environment) for worker in workers)]


@contextmanager
def supervised(folder: Path) -> Iterator[tuple[psutil.Process, str]]:
    """Yield the supervisor's process and the API's address."""
    port = free_port()
    named = {
        "PLIMSOLL_DATA_DIR": str(folder / "data"),
        "PLIMSOLL_PORT": str(port),
        "PLIMSOLL_JOB_MEMORY_BYTES": str(2**30),
        "PLIMSOLL_QUEUE_LIMIT": str(QUEUE_LIMIT),
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PLIMSOLL_")}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.soak", "--serve"],
            cwd=PROJECT_ROOT, env={**environment, **named}, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield psutil.Process(process.pid), f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        finally:
            process.kill()


def soak(folder: Path, *, jobs: int, seconds: float, seed: int) -> Report:
    """Submit so many jobs, or for so long, and kill meanwhile; then wait for the last, and settle."""
    dice = random.Random(seed)
    victims = _victims(dice)
    began_at = time.monotonic()
    kills: Counter[str] = Counter()
    recovery_seconds: dict[str, float] = {}
    with supervised(folder) as (supervisor, base_url):
        log = folder / "log"
        # The supervisor's own word: until it has seen the API answer, one that dies is taken for one that cannot start.
        wait_for(lambda: "listens on" in log.read_text(), log.read_text)
        with loaded(base_url, clients=CLIENTS, jobs=jobs) as (load, accepted):
            while not load.is_done() and time.monotonic() - began_at < seconds:
                time.sleep(dice.uniform(1.0, 10.0))
                part = next(victims)
                if _kill(supervisor, part):
                    kills[part] += 1
                    killed_at = time.monotonic()
                    wait_for(lambda: answers_ready(base_url), log.read_text)
                    recovery_seconds[part] = max(recovery_seconds.get(part, 0.0), time.monotonic() - killed_at)
        if load.errors:
            raise load.errors[0]
        url = running_server_url(folder / "data" / "postgres")
        wait_for(lambda: is_settled(url), log.read_text, seconds=PATIENCE_SECONDS + len(accepted.jobs))
        books = settle(url, accepted)
    return Report(
        seconds=time.monotonic() - began_at,
        books=books,
        plans=len(accepted.plans),
        refusals=accepted.refusals,
        kills=kills,
        recovery_seconds=recovery_seconds,
    )


def _victims(dice: random.Random) -> Iterator[str]:
    """Yield what to kill, in rounds of any order: a short run kills one of each, too."""
    while True:
        yield from dice.sample(sorted(PARTS), len(PARTS))


def _kill(supervisor: psutil.Process, part: str) -> bool:
    """Kill one of the processes with -9, and return whether there was one."""
    # Whatever is on its way to become one of them may be gone by now.
    with suppress(psutil.NoSuchProcess):
        found = next((child for child in supervisor.children() if _is(child, PARTS[part])), None)
        if found is None:
            return False
        found.kill()
        wait_for(lambda: not found.is_running() or found.status() == psutil.STATUS_ZOMBIE)
    return True


def _is(process: psutil.Process, words: str) -> bool:
    try:
        return words in " ".join(process.cmdline())
    except psutil.Error:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--minutes", type=float, default=120.0, help="stop submitting after so long")
    parser.add_argument("--seed", type=int, default=0, help="of what is killed when")
    parser.add_argument("--serve", action="store_true", help="be the supervised service")
    asked = parser.parse_args()
    if asked.serve:
        return _SoakSupervisor(Settings(), WORKERS).run()
    with tempfile.TemporaryDirectory(prefix="plimsoll-soak-", ignore_cleanup_errors=True) as folder:
        report = soak(Path(folder), jobs=asked.jobs, seconds=60 * asked.minutes, seed=asked.seed)
    print(report)
    for wrong in report.books.wrong:
        print(wrong)
    return 1 if report.books.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
