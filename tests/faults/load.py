"""Clients that keep the service busy from threads of their own."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.faults.client import Accepted, PatientClient

# Between two jobs of a client comes a plan, every so many jobs.
JOBS_A_PLAN = 3


class Load:
    """So many clients, which together submit so many jobs, and plans between them."""

    def __init__(self, base_url: str, accepted: Accepted, *, clients: int, jobs: int) -> None:
        self._base_url = base_url
        self._accepted = accepted
        self._seeds = iter(range(jobs))
        self._plan_numbers = itertools.count()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self.errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(clients)]

    def is_done(self) -> bool:
        """Return whether every client has what it wanted, or failed."""
        return not any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Let each client finish what it is at, and wait for that."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        client = PatientClient(self._base_url, self._accepted)
        try:
            while not self._stopping.is_set() and (seed := self._next_seed()) is not None:
                client.quantize(seed)
                if seed % JOBS_A_PLAN == 0:
                    client.plan(next(self._plan_numbers))
        except BaseException as error:  # noqa: BLE001 - raised by the test, which looks here
            self.errors.append(error)
        finally:
            client.close()

    def _next_seed(self) -> int | None:
        with self._lock:
            return next(self._seeds, None)


@contextmanager
def loaded(base_url: str, *, clients: int, jobs: int) -> Iterator[tuple[Load, Accepted]]:
    """Yield clients at work, and what they were promised so far; wait for them at the end."""
    accepted = Accepted()
    load = Load(base_url, accepted, clients=clients, jobs=jobs)
    load.start()
    try:
        yield load, accepted
    finally:
        load.stop()
