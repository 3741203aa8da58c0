"""A version of the service as a process of its own, with a data folder of its own."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.same_answers.surroundings import surroundings

START_SECONDS = 180.0
STOP_SECONDS = 60.0
LOG_CHARACTERS = 2_000

# The command of the terminal, where it lay and where it lies.
COMMANDS = ("plimsoll/cli/main.py", "cli/main.py")

# Neither a limit nor a slow machine may make a difference.
SETTINGS = {
    "PLIMSOLL_KEY_REQUESTS_PER_SECOND": "0",
    "PLIMSOLL_WRONG_KEYS_PER_MINUTE": "0",
    "PLIMSOLL_KEY_STORED_BYTES_PER_DAY": "0",
    "PLIMSOLL_REQUEST_TIMEOUT_SECONDS": "600",
    "PLIMSOLL_LOG_LEVEL": "error",
}


def git(*arguments: str) -> str:
    """Return what git prints, without the end of its last line."""
    return _git(*arguments).decode().strip()


def write_tree(commit: str, folder: Path) -> None:
    """Write the files of a commit into a folder."""
    with tarfile.open(fileobj=io.BytesIO(_git("archive", "--format=tar", commit))) as files:
        files.extractall(folder, filter="data")


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], check=True, capture_output=True).stdout  # noqa: S607


@contextmanager
def running_service(root: Path, data_dir: Path) -> Iterator[str]:
    """Yield the URL of the service of a tree, with its database and without a worker."""
    data_dir.mkdir(parents=True)
    log_file, port = data_dir.with_suffix(".log"), _free_port()
    with log_file.open("wb") as log, surroundings() as around:
        process = subprocess.Popen(
            [sys.executable, "-m", _command(root), "serve", "--port", str(port), "--workers", "0"],
            cwd=root,
            env={**_environment(root, data_dir), **around},
            stdout=log,
            stderr=log,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, process, log_file)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            finally:
                process.kill()


def _command(root: Path) -> str:
    """Return the module that a tree is started by."""
    for path in COMMANDS:
        if (root / path).exists():
            return path.removesuffix(".py").replace("/", ".")
    raise FileNotFoundError(f"{root} has neither {' nor '.join(COMMANDS)}.")


def _environment(root: Path, data_dir: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PLIMSOLL_")}
    return {**own, **SETTINGS, "PYTHONPATH": str(root), "PLIMSOLL_DATA_DIR": str(data_dir)}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log_file: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/readyz", trust_env=False).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"The service did not start:\n{log_file.read_text(errors='replace')[-LOG_CHARACTERS:]}")
