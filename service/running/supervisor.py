"""One command for the whole service: database, API and workers as children of one process.

The supervisor owns nothing that a `kill -9` could hurt: children die with it,
at once (PDEATHSIG), Postgres recovers by its log, and jobs of a dead worker are handed
to the next. A child that dies alone is started again.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from urllib.parse import urlsplit

import httpx

from plimsoll.planners import PLANNER_VERSION
from plimsoll.service.ground.errors import DatabaseUnavailable
from plimsoll.service.ground.settings import Settings
from plimsoll.service.persistence.upgrade import upgrade
from plimsoll.service.requests import examples
from plimsoll.service.running.listening import check_listening
from plimsoll.service.running.postgres.embedded import EmbeddedPostgres
from plimsoll.service.running.processes import launched
from plimsoll.service.running.restarts import LONGEST_PAUSE_SECONDS, Restarts

# Modules to run, and their arguments: this process loads neither.
API = ("plimsoll.api",)
WORKER = ("plimsoll.cli.main", "worker")
WATCH_SECONDS = 0.2
READY_TIMEOUT_SECONDS = 300.0
"""A machine that is busy with other things may take a minute to load the API."""
STOP_MARGIN_SECONDS = 15.0
"""Beyond the longest request, which the API answers before it ends."""
GOOD_WHILE_SECONDS = 60.0


@dataclass(slots=True, kw_only=True)
class Child:
    """One supervised process, and when it may be started again."""

    name: str
    command: list[str]
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    restart_at: float = 0.0
    restarts: Restarts = field(default_factory=lambda: Restarts(good_while_seconds=GOOD_WHILE_SECONDS))

    def start(self) -> None:
        """Start the process in a session of its own, so that Ctrl-C reaches the supervisor alone.

        It is killed where the supervisor is: told to stop, a worker would wait ten seconds for the database to hand its
        job back to, which died at the same moment.
        """
        command = launched(self.command, signal_number=signal.SIGKILL)
        self.process = subprocess.Popen(command, env=self.environment, start_new_session=True)
        self.started_at = time.monotonic()

    def has_died(self) -> bool:
        """Return whether it was started and is no longer running."""
        return self.process is not None and self.process.poll() is not None

    def has_ended_by_itself(self) -> bool:
        """Return whether it died and no signal was what ended it."""
        return self.process is not None and (self.process.poll() or 0) > 0

    def plan_restart(self) -> None:
        """Note when to start it again: soon at first, ever later if it keeps dying."""
        now = time.monotonic()
        self.restart_at = now + self.restarts.pause_seconds(now - self.started_at)
        self.process = None

    def signal(self, number: int) -> None:
        """Send a signal if it is running."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)


@dataclass(slots=True)
class Supervisor:
    """Runs the service until it is told to stop."""

    settings: Settings
    worker_count: int = 1
    _stop_signal: int | None = None
    _children: list[Child] = field(default_factory=list)
    _postgres: EmbeddedPostgres | None = None
    _postgres_restart_at: float = 0.0

    def run(self) -> int:
        """Run until SIGINT or SIGTERM; return the exit status. Raises CannotStart and DatabaseUnavailable."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        # Before anything is started that would have to be stopped.
        check_listening(self.settings)
        try:
            with self._database_url() as url:
                upgrade(url)
                return self._serve(url)
        except KeyboardInterrupt:
            return 0

    def _serve(self, url: str) -> int:
        self._children = self._planned_children(url)
        try:
            for child in self._children:
                child.start()
            if not self._wait_until_ready():
                return 0 if self._stop_signal else 1
            self._say(banner(self._base_url(), self.worker_count))
            if self.settings.needs_keys:
                self._say("Every request needs an API key here; `plimsoll keys create` makes one.")
            while self._stop_signal is None:
                self._restart_postgres()
                self._restart_the_dead()
                time.sleep(WATCH_SECONDS)
            self._say("Stopping ...")
            return 0
        finally:
            self._stop_children()

    @contextmanager
    def _database_url(self) -> Iterator[str]:
        if self.settings.database_url is not None:
            yield str(self.settings.database_url)
            return
        root = self.settings.data_dir / "postgres"
        with EmbeddedPostgres(root, binaries=self.settings.postgres_bin) as postgres:
            self._postgres = postgres
            yield postgres.url

    def _planned_children(self, url: str) -> list[Child]:
        environment = {
            **os.environ,
            "PLIMSOLL_DATABASE_URL": url,
            "PLIMSOLL_HOST": self.settings.host,
            "PLIMSOLL_PORT": str(self.settings.port),
        }
        module = [sys.executable, "-m"]
        api = Child(name="api", command=[*module, *API], environment=environment)
        workers = [
            Child(name=f"worker {index}", command=[*module, *WORKER], environment=environment)
            for index in range(self.worker_count)
        ]
        return [api, *workers]

    def _base_url(self) -> str:
        host = "127.0.0.1" if self.settings.host in ("0.0.0.0", "::") else self.settings.host  # noqa: S104
        scheme = "http" if self.settings.tls_certificate_file is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.settings.port}"

    def _wait_until_ready(self) -> bool:
        """Return True once the API answers; False if it gave up or was told to stop. What was killed starts again."""
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        api = self._children[0]
        while self._stop_signal is None and time.monotonic() < deadline:
            if api.has_ended_by_itself():
                self._say("The API could not start; what it said of it stands above.")
                return False
            if self._answers():
                return True
            self._restart_postgres()
            self._restart_the_dead()
            time.sleep(WATCH_SECONDS / 2)
        if self._stop_signal is None:
            self._say(f"The API did not become ready within {READY_TIMEOUT_SECONDS:.0f} s.")
        return False

    def _answers(self) -> bool:
        if self.settings.tls_client_ca_file is not None:
            # We have no certificate to show; that the port is open is all that can be seen.
            host = urlsplit(self._base_url()).hostname
            with socket.socket(socket.AF_INET6 if ":" in str(host) else socket.AF_INET) as probe:
                probe.settimeout(2.0)
                return probe.connect_ex((str(host), self.settings.port)) == 0
        try:
            # Whether our own child is up: its certificate is made for another name than this one.
            url = f"{self._base_url()}/readyz"
            return httpx.get(url, timeout=2.0, trust_env=False, verify=False).status_code == httpx.codes.OK  # noqa: S501
        except httpx.TransportError:
            return False

    def _restart_postgres(self) -> None:
        postgres = self._postgres
        if postgres is None or postgres.process_id is not None or time.monotonic() < self._postgres_restart_at:
            return
        self._say("The database ended; starting it again.")
        try:
            postgres.start()
        except (DatabaseUnavailable, OSError) as error:
            # A full disk may have room again: nothing is gained by ending the rest.
            self._postgres_restart_at = time.monotonic() + LONGEST_PAUSE_SECONDS
            self._say(f"It could not be started, and is tried again in {LONGEST_PAUSE_SECONDS:.0f} s: {error}")

    def _restart_the_dead(self) -> None:
        for child in self._children:
            if child.has_died():
                status = child.process.returncode if child.process else None
                child.plan_restart()
                self._say(f"The {child.name} ended with status {status}; starting it again.")
            elif child.process is None and time.monotonic() >= child.restart_at:
                child.start()

    def _stop_children(self) -> None:
        for child in self._children:
            child.signal(signal.SIGTERM)
        deadline = time.monotonic() + self.settings.longest_request_seconds + STOP_MARGIN_SECONDS
        for child in self._children:
            if child.process is None:
                continue
            try:
                child.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.signal(signal.SIGKILL)
                child.process.wait()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._stop_signal is not None:
            for child in self._children:
                child.signal(signal.SIGKILL)
        self._stop_signal = number

    @staticmethod
    def _say(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def banner(base_url: str, worker_count: int) -> str:
    """Return what a person sees once the service is up: where it listens, and three things to try."""
    suggestions = (
        ("/plan/train?format=text", examples.PLAN_TRAINING),
        ("/plan/infer?format=text", examples.SIZE_SERVING),
        ("/quantize", examples.QUANTIZE),
    )
    commands = (
        f"  curl -s '{base_url}{path}' -H 'content-type: application/json' \\\n    -d '{json.dumps(body)}'\n"
        for path, body in suggestions
    )
    return "\n".join(
        (
            "",
            f"Plimsoll {PLANNER_VERSION} listens on {base_url} with {worker_count} worker(s). Ctrl-C stops everything.",
            f"The API is described at {base_url}/docs. Three things to try:",
            "",
            *commands,
        )
    )
