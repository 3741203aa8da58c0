"""The service's processes, one by one, so that each can be killed and started again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.load.server import free_port
from plimsoll.service.worker.processes.child import PROJECT_ROOT

# A busy machine of two cores may take a minute to start a process.
PATIENCE_SECONDS = 240.0
POLL_SECONDS = 0.05


def wait_for(condition: Callable[[], object], describe: Callable[[], str] = str, seconds: float = PATIENCE_SECONDS):
    """Return the first true value of a condition; TimeoutError says what was seen until then."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"Not within {seconds:g} s. {describe()[-4000:]}")
        time.sleep(POLL_SECONDS)
    return found


@dataclass
class Part:
    """One process, and how it is started."""

    command: list[str]
    variables: dict[str, str]
    log_file: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; its output is added to its log."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PLIMSOLL_")}
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=PROJECT_ROOT, env={**environment, **self.variables}, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """Kill it with -9, and wait until it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")


@dataclass
class Parts:
    """All processes of one test, on one database."""

    folder: Path
    database_url: str
    started: list[Part] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    """Further ones of every process."""

    def api(self, *, url: str | None = None, **settings: object) -> Part:
        """Return an API that answers; `port` is in its variables."""
        given = {"port": free_port(), **settings}
        return self._started([sys.executable, "-m", "plimsoll.api"], url, given)

    def worker(
        self,
        task: str = "quantize",
        *,
        concurrency: int = 1,
        url: str | None = None,
        **settings: object,
    ) -> Part:
        """Return a worker that is quick to be missed."""
        given = {"heartbeat_seconds": 1, "stalled_after_seconds": 4, "job_memory_bytes": 2**30, **settings}
        command = [sys.executable, "-m", "tests.faults.worker", task, str(concurrency)]
        return self._started(command, url, given)

    def _started(self, command: list[str], url: str | None, settings: dict[str, object]) -> Part:
        named = {"database_url": url or self.database_url, **settings}
        variables = {f"PLIMSOLL_{name.upper()}": str(value) for name, value in named.items()}
        part = Part(command, {**self.variables, **variables}, self.folder / f"part_{len(self.started)}.log")
        part.start()
        self.started.append(part)
        return part

    def stop(self) -> None:
        """Kill whatever still runs."""
        for part in self.started:
            part.kill()


def address(api: Part) -> str:
    """Return where an API listens."""
    return f"http://127.0.0.1:{api.variables['PLIMSOLL_PORT']}"


def answers_ready(base_url: str) -> bool:
    """Return whether the API at an address says that it can work."""
    try:
        return httpx.get(f"{base_url}/readyz", trust_env=False, timeout=30).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def is_ready(api: Part) -> bool:
    """Return whether an API says that it can work."""
    return answers_ready(address(api))
