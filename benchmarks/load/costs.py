"""Print what a request costs beside one of FastAPI by itself, on the same server: `python -m benchmarks.load.costs`.

Every kind of request is sent for some seconds, one kind after the other, and all of them again. Costs are the server's
own processor time, the least of the rounds, for what else the machine does only adds to it; rates are the highest. With
`--beside FOLDER` another checkout's service is measured in the same rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import gc
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from benchmarks.load.asked import NO_OP, fresh, searched
from benchmarks.load.driver import Connection, MakeRequest, get
from benchmarks.load.overload import make_keys
from benchmarks.load.sender import Round, sent_round
from benchmarks.load.server import free_port, running_api
from benchmarks.load.steady import CONNECTIONS
from plimsoll.service.running.postgres.embedded import running_server_url

ROUNDS = 5
ROUND_SECONDS = 2.0
WARMING_SECONDS = 1.0
START_SECONDS = 30.0


@dataclass(slots=True, kw_only=True)
class Case:
    """One kind of request to one server, and its rounds."""

    name: str
    port: int
    server: psutil.Process
    request: MakeRequest
    rounds: list[Round] = field(default_factory=list)

    @property
    def processor_ms(self) -> float:
        """Return the least that the server took for a request."""
        return min(each.processor_ms for each in self.rounds)

    @property
    def requests_per_second(self) -> float:
        """Return the highest rate."""
        return max(each.requests_per_second for each in self.rounds)


@contextmanager
def running_bare() -> Iterator[tuple[int, psutil.Process]]:
    """Yield the port and the process of FastAPI by itself."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.load.bare", str(port)])
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("FastAPI by itself did not start.")
            time.sleep(0.1)
        yield port, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def cases_of(folder: Path, port: int, server: psutil.Process, *, of: str) -> list[Case]:
    """Return every kind of request to a service whose database lies in the folder."""
    (key,) = asyncio.run(make_keys(running_server_url(folder / "postgres"), 1))
    numbers = itertools.count(1)
    address = f"/plans/{json.loads(asyncio.run(Connection(port).ask(fresh(0, key=key))))['plan_id']}"
    sent = (
        ("`GET /healthz`, which does nothing", _always(NO_OP)),
        ("the same with a key", _always(get("/healthz", key=key))),
        ("`GET /plans/{plan_id}`, stored", _always(get(address))),
        ("the same with a key", _always(get(address, key=key))),
        ("`POST /plan/infer`, fixed layout, fresh", lambda _: fresh(next(numbers))),
        ("`POST /plan/infer`, 8 GPUs searched, fresh", lambda _: searched(next(numbers))),
    )
    return [Case(name=f"{of}{name}", port=port, server=server, request=request) for name, request in sent]


def _always(request: bytes) -> MakeRequest:
    return lambda _: request


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False).is_success
    except httpx.TransportError:
        return False


def table(cases: list[Case]) -> str:
    """Return all cases as a table; the first is what the others are shares of."""
    rows = [
        "| request | requests/s | share of the first | processor ms | the first's, of it |\n|---|--:|--:|--:|--:|",
        *(
            f"| {case.name} | {case.requests_per_second:,.0f} "
            f"| {case.requests_per_second / cases[0].requests_per_second:.3f} "
            f"| {case.processor_ms:.3f} | {cases[0].processor_ms / case.processor_ms:.3f} |"
            for case in cases
        ),
    ]
    return "\n".join(rows)


def main() -> None:
    """Start the servers, send to them in turn, and print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", type=Path, help="another checkout, whose service is measured in the same rounds")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=ROUND_SECONDS)
    chosen = parser.parse_args()
    # Full collections of the sender's own objects would count as the service's time.
    gc.disable()
    print(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    with tempfile.TemporaryDirectory(prefix="plimsoll-costs-") as folder, ExitStack() as stack:
        port, server = stack.enter_context(running_bare())
        cases = [Case(name="FastAPI by itself", port=port, server=server, request=_always(NO_OP))]
        for name, checkout in (("", None), ("beside: ", chosen.beside)):
            if name and checkout is None:
                continue
            own = Path(folder) / (name.partition(":")[0] or "own")
            own.mkdir()
            base_url, process_id = stack.enter_context(
                running_api(own, durable=True, checkout=checkout, key_requests_per_second=0)
            )
            port = int(base_url.rpartition(":")[2])
            cases += cases_of(own, port, psutil.Process(process_id), of=name)
        for turn in range(chosen.rounds + 1):
            for case in cases:
                seconds = chosen.seconds if turn else WARMING_SECONDS
                done = sent_round(case.port, case.request, case.server, connections=CONNECTIONS, seconds=seconds)
                if turn:
                    case.rounds.append(done)
        print(table(cases))


if __name__ == "__main__":
    main()
