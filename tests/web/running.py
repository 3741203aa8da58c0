"""The whole service, as `make serve` starts it, for a browser to visit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.load.server import free_port

READY_SECONDS = 360.0
GONE_SECONDS = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningService:
    """Where a service is, the folders that it reads models from, and the environment that its own commands need."""

    address: str
    models: Path
    environment: Mapping[str, str]

    def new_key(self, *scopes: str) -> str:
        """Return a new API key."""
        command = [sys.executable, "-m", "plimsoll.cli.main", "keys", "create", "browser"]
        options = [word for scope in scopes for word in ("--scope", scope)]
        made = subprocess.run([*command, *options], env=self.environment, capture_output=True, text=True, check=True)
        return made.stdout.strip()


@contextmanager
def running_service(folder: Path) -> Iterator[RunningService]:
    """Yield a service with database, API and one worker; it keeps everything in the folder."""
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PLIMSOLL_")}
    environment["PLIMSOLL_DATA_DIR"] = str(folder / "data")
    for name in ("models", "outputs"):
        (folder / name).mkdir()
    environment["PLIMSOLL_MODEL_ROOTS"] = str(folder / "models")
    environment["PLIMSOLL_OUTPUT_ROOTS"] = str(folder / "outputs")
    with (folder / "service.log").open("wb") as log:
        command = [sys.executable, "-m", "plimsoll.cli.main", "serve", "--port", str(port)]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        service = RunningService(address=f"http://127.0.0.1:{port}", models=folder / "models", environment=environment)
        _wait_until_ready(service.address, process, folder / "service.log")
        yield service
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(GONE_SECONDS)
        finally:
            process.kill()


def _wait_until_ready(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    ends = time.monotonic() + READY_SECONDS
    with httpx.Client(base_url=address, trust_env=False) as client:
        while not _is_ready(client):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < ends, log.read_text()[-3000:]
            time.sleep(0.1)


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
