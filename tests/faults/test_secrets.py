"""Secrets planted everywhere they can be, and looked for in all that the service says while everything goes wrong."""

from __future__ import annotations

import asyncio
import signal

import httpx
from sqlalchemy.engine import make_url

from plimsoll.service.access.keys import NewKey, make_key
from plimsoll.service.persistence.database import Database
from plimsoll.service.running.postgres.embedded import EmbeddedPostgres
from tests.faults.client import TINY_MODEL
from tests.faults.processes import PATIENCE_SECONDS, Part, Parts, address, is_ready, wait_for

# Each stands in one place alone, so that a find tells the place.
DATABASE_PASSWORD = "planted-in-the-database-address"
HUB_PASSWORD = "planted-in-the-hub-address"
COLLECTOR_PASSWORD = "planted-in-the-collector-address"
WRONG_KEY = f"plimsoll_{16 * '0'}_{'planted-by-a-stranger':_<43}"
# Nothing listens on port 1 of this machine.
NOWHERE = "127.0.0.1:1"


async def kept(database_url: str) -> NewKey:
    new = make_key("test", ["admin"], lifetime=None)
    async with Database(database_url) as database:
        await database.keys.add(new.record)
    return new


def asked_everything(api: Part, key: str) -> str:
    """Return all that the API answers to requests of every kind, with a key, a wrong one and none."""
    question = {"model": TINY_MODEL, "hardware": {"gpu": "h100-sxm-80gb", "gpus": 1}}
    told = []
    with httpx.Client(base_url=address(api), trust_env=False, timeout=PATIENCE_SECONDS) as client:
        for shown in (f"Bearer {key}", f"Bearer {WRONG_KEY}", f"Basic {WRONG_KEY}", None):
            headers = {} if shown is None else {"authorization": shown}
            for path, body in (
                ("/plan/infer", question),
                ("/plan/infer", {**question, "model": {"hub": "org/name"}}),
                ("/plan/infer", {"nonsense": True}),
                ("/quantize", {"model": TINY_MODEL, "scheme": "nf4"}),
                ("/admission/validate", {}),
            ):
                told.append(client.post(path, json=body, headers=headers))
            told += [client.get(path, headers=headers) for path in ("/healthz", "/readyz", "/jobs", "/metrics", "/no")]
    assert {answer.status_code for answer in told} >= {200, 202, 401, 404, 422}
    return "".join(f"{answer.headers}{answer.text}" for answer in told)


def test_no_secret_is_in_a_log_or_an_answer_whatever_goes_wrong(own_server: EmbeddedPostgres, own_parts: Parts):
    new = asyncio.run(kept(own_server.url))
    url = make_url(own_server.url).set(password=DATABASE_PASSWORD).render_as_string(hide_password=False)
    addresses = {
        "hub_url": f"http://someone:{HUB_PASSWORD}@{NOWHERE}",
        "traces_url": f"http://someone:{COLLECTOR_PASSWORD}@{NOWHERE}/v1/traces",
        "log_level": "debug",
    }
    # Beyond this machine keys are needed.
    api = own_parts.api(url=url, host="0.0.0.0", **addresses)  # noqa: S104
    worker = own_parts.worker(url=url, **addresses)
    wait_for(lambda: is_ready(api), lambda: api.log)
    told = asked_everything(api, new.key)
    wait_for(lambda: "job finished" in worker.log, lambda: worker.log)
    own_server.stop()
    wait_for(lambda: "database unavailable" in worker.log, lambda: worker.log)
    told += asked_everything_away(api, new.key)
    for part in (api, worker):
        assert part.process is not None
        part.process.send_signal(signal.SIGTERM)
        part.process.wait(PATIENCE_SECONDS)
    said = told + api.log + worker.log
    for secret in (new.key, new.record.key_hash, WRONG_KEY, DATABASE_PASSWORD, HUB_PASSWORD, COLLECTOR_PASSWORD):
        assert secret not in said, said[max(0, said.index(secret) - 500) :][:1000]
    # It was the right run: the key is named by its id, and the errors were there.
    assert new.record.key_id in api.log
    assert "database-unavailable" in told


def asked_everything_away(api: Part, key: str) -> str:
    """Return what is answered while the database is away."""
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=address(api), trust_env=False, timeout=PATIENCE_SECONDS, headers=headers) as client:
        return "".join(client.get(path).text for path in ("/readyz", "/jobs", "/plans/none", "/metrics"))
