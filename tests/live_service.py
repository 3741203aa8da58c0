"""The service as clients meet it: the API on a port of its own, and a worker as a process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from plimsoll.api.main import server_config
from plimsoll.service.ground.settings import Settings
from plimsoll.service.worker.processes.child import PROJECT_ROOT

STOP_SECONDS = 240


@contextmanager
def running_api(settings: Settings) -> Iterator[str]:
    """Yield the URL of the API, which listens once this yields."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(server_config(settings))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(STOP_SECONDS)


@contextmanager
def running_worker(database_url: str, log_file: Path) -> Iterator[None]:
    """Run a worker on a database."""
    with log_file.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "plimsoll.cli.main", "worker", "--queues", "cpu"],
            cwd=PROJECT_ROOT,
            env={**os.environ, "PLIMSOLL_DATABASE_URL": database_url},
            stdout=log,
            stderr=log,
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            finally:
                process.kill()
