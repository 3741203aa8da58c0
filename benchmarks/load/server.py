"""The API as a process of its own on a database of its own, for programs that ask it very often."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from plimsoll.service.persistence.upgrade import upgrade
from plimsoll.service.running.postgres.embedded import EmbeddedPostgres

START_SECONDS = 180.0
STOP_SECONDS = 60.0


# Below what Linux gives to outgoing connections (net.ipv4.ip_local_port_range begins at 32768): one of those could take
# the port of a server that is being started again, and a client that knocks there could even meet itself.
FIRST_PORT, LAST_PORT = 16_000, 32_000


def free_port() -> int:
    """Return a port of this machine that nothing listens on, and that no connection will be given.

    Drawn, so that two processes that ask at the same moment seldom get the same one.
    """
    for port in random.SystemRandom().sample(range(FIRST_PORT, LAST_PORT), LAST_PORT - FIRST_PORT):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"No port between {FIRST_PORT} and {LAST_PORT} is free.")


@contextmanager
def running_api(
    folder: Path, *, durable: bool = False, checkout: Path | None = None, **settings: object
) -> Iterator[tuple[str, int]]:
    """Yield the API's address and its process id; its log is `api.log` in the folder.

    With `durable` a commit waits for the disk, as it does where the service keeps anything. The API is that of another
    `checkout` where one is named.
    """
    with EmbeddedPostgres(folder / "postgres", durable=durable) as server, (folder / "api.log").open("ab") as log:
        upgrade(server.url)
        port = free_port()
        given = {"database_url": server.url, "port": port, "log_level": "warning", **settings}
        variables = {f"PLIMSOLL_{name.upper()}": str(value) for name, value in given.items()}
        process = subprocess.Popen(
            [sys.executable, "-m", "plimsoll.api"],
            cwd=checkout,
            env={**os.environ, **variables},
            stdout=log,
            stderr=log,
        )
        try:
            base_url = f"http://127.0.0.1:{port}"
            _wait_until_ready(base_url, process)
            yield base_url, process.pid
        finally:
            process.terminate()
            process.wait(STOP_SECONDS)


def _wait_until_ready(base_url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            if httpx.get(f"{base_url}/readyz", trust_env=False).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("The API did not start; its log says why.")
        time.sleep(0.1)
