"""Print what becomes of everyone's requests at three times capacity: `python -m benchmarks.load.overload`.

Once one caller sends it all, once several do, each with an API key of its own; beside them another caller now and then
asks something new, and somebody looks at a stored plan and probes the health. No limit of requests a second is set for
a key, so that it is the shares of the searches that bear it.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import gc
import itertools
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.asked import NO_OP, fresh
from benchmarks.load.driver import Connection, Load, MakeRequest, closed_loop, get, open_loop, part_within
from benchmarks.load.server import running_api
from benchmarks.load.steady import CAPACITY_SECONDS, CONNECTIONS
from plimsoll.service.access.keys import make_key
from plimsoll.service.persistence.database import Database
from plimsoll.service.running.postgres.embedded import running_server_url

TIMES_CAPACITY = 3.0
SECONDS = 12.0
SEVERAL = 6
# Of who asks for little: a new plan, a look, a probe.
FRESH_PER_SECOND = 5.0
LOOKS_PER_SECOND = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """Who asks for what, and how often."""

    name: str
    request: MakeRequest
    per_second: float


def row(name: str, loads: Sequence[Load], asked_per_second: float) -> str:
    """Return what became of the requests of one party, or of several of a kind, as a row of the table."""
    answered = sorted(seconds for load in loads for seconds in load.latencies)
    codes = sorted({code for load in loads for code in load.refusals})
    refusals = {code: sum(len(load.refusals.get(code, ())) for load in loads) for code in codes}
    refused = sorted(seconds for load in loads for each in load.refusals.values() for seconds in each)
    said = ", ".join(f"{count} {code}" for code, count in refusals.items()) or "none"
    return f"| {name} | {asked_per_second:.0f} | {len(answered)} | {_ms(answered)} | {said} | {_ms(refused)} |"


def _ms(seconds: Sequence[float]) -> str:
    if not seconds:
        return ""
    return ", ".join(f"{1000 * part_within(seconds, fraction):.0f}" for fraction in (0.5, 0.99))


async def measure(port: int, keys: Sequence[str]) -> None:
    """Print a table for one caller beyond capacity, and one for several."""
    numbers = itertools.count(1)

    def new_of(key: str) -> MakeRequest:
        return lambda _: fresh(next(numbers), key=key)

    polite, *greedy = keys
    stored = get("/plans/" + json.loads(await Connection(port).ask(fresh(0, key=polite)))["plan_id"], key=polite)
    for callers in (greedy[:1], greedy):
        most = await closed_loop(port, new_of(polite), connections=CONNECTIONS, seconds=CAPACITY_SECONDS)
        rate = TIMES_CAPACITY * most.requests_per_second / len(callers)
        greedies = [Party(name="", request=new_of(key), per_second=rate) for key in callers]
        others = [
            Party(name="another caller, new plans", request=new_of(polite), per_second=FRESH_PER_SECOND),
            Party(name="a stored plan", request=lambda _: stored, per_second=LOOKS_PER_SECOND),
            Party(name="`/healthz`", request=lambda _: NO_OP, per_second=LOOKS_PER_SECOND),
        ]
        loads = await asyncio.gather(
            *(
                open_loop(port, each.request, requests_per_second=each.per_second, seconds=SECONDS)
                for each in (*greedies, *others)
            )
        )
        print(f"\n{len(callers)} beyond capacity, which is {most.requests_per_second:.0f} requests/s:\n")
        print("| who | asked, requests/s | answered | p50, p99, ms | refused | p50, p99 until then, ms |")
        print("|---|--:|--:|--:|---|--:|")
        print(row("beyond capacity", loads[: len(callers)], rate * len(callers)))
        for party, load in zip(others, loads[len(callers) :], strict=True):
            print(row(party.name, [load], party.per_second))
        late = max(part_within(load.lags, 0.99) for load in loads)
        print(f"\nThe sender was {1000 * late:.0f} ms late in the 99th percentile.", flush=True)


async def make_keys(database_url: str, count: int) -> list[str]:
    """Return so many new keys that may plan."""
    async with Database(database_url, pool_size=1) as database:
        made = [make_key(f"caller {number}", ["plan"], lifetime=None) for number in range(count)]
        for new in made:
            await database.keys.add(new.record, lifetime=new.lifetime)
    return [new.key for new in made]


def main() -> None:
    """Start a server, load it beyond capacity, and print the tables as Markdown."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    # Full collections of the sender's own objects would count as the service's time.
    gc.disable()
    print(
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before"
    )
    with (
        tempfile.TemporaryDirectory(prefix="plimsoll-overload-") as folder,
        running_api(Path(folder), durable=True, key_requests_per_second=0) as (base_url, _),
    ):
        keys = asyncio.run(make_keys(running_server_url(Path(folder) / "postgres"), 1 + SEVERAL))
        asyncio.run(measure(int(base_url.rpartition(":")[2]), keys))


if __name__ == "__main__":
    main()
