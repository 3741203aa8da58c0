"""Workers as processes of their own, to be killed, paused and told to stop."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from plimsoll.service.worker.processes.child import PROJECT_ROOT

# Nothing here takes as long but on a machine that stands still.
PATIENCE_SECONDS = 240.0
SAMPLE = "tests.service.worker.sample_tasks:"
PROGRAM = """
import json, sys
from plimsoll.service.ground.settings import Settings
from plimsoll.service.worker.main import run_worker
run_worker(Settings(), ["cpu"], int(sys.argv[1]), tasks=json.loads(sys.argv[2]))
"""


@dataclass
class WorkerProcess:
    process: subprocess.Popen
    log_file: Path

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def events(self, event: str) -> list[dict]:
        lines = [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self) -> int:
        """Tell it to stop and return its exit status."""
        self.signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)


StartWorker = Callable[..., WorkerProcess]


@pytest.fixture
def start_worker(database_url: str, tmp_path: Path) -> Iterator[StartWorker]:
    """Return a function that starts a worker whose `quantize` is one of the sample tasks, and `validate` another."""
    started: list[WorkerProcess] = []

    def start(task: str, *, concurrency: int = 1, url: str = database_url, **settings: object) -> WorkerProcess:
        given = {"database_url": url, "heartbeat_seconds": 0.5, "stalled_after_seconds": 2, **settings}
        variables = {f"PLIMSOLL_{name.upper()}": str(value) for name, value in given.items()}
        tasks = {"quantize": SAMPLE + task, "validate": SAMPLE + "validate"}
        log_file = tmp_path / f"worker_{len(started)}.log"
        with log_file.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(concurrency), json.dumps(tasks)],
                cwd=PROJECT_ROOT,
                env={**os.environ, **variables},
                stderr=log,
                stdout=log,
            )
        started.append(WorkerProcess(process, log_file))
        return started[-1]

    yield start
    for worker in started:
        worker.process.kill()
        worker.process.wait()


@pytest.fixture
def wait_until() -> Callable[..., object]:
    """Return a coroutine function that waits for a function, plain or async, to return something true."""

    async def wait(condition, seconds: float = PATIENCE_SECONDS):
        deadline = time.monotonic() + seconds
        while not (found := await _value(condition)):
            assert time.monotonic() < deadline, f"not within {seconds} s"
            await asyncio.sleep(0.05)
        return found

    return wait


async def _value(condition):
    found = condition()
    return await found if inspect.isawaitable(found) else found
