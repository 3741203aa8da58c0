"""A client that does not give up: it asks again, under the same key, until it is answered."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.faults.processes import PATIENCE_SECONDS

TINY_MODEL = {"config": {"model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 2}}
REFUSALS = (429, 502, 503, 504)
RETRY_SECONDS = 0.2
FULL_RETRY_SECONDS = 1.0


@dataclass
class Accepted:
    """What the service said yes to: jobs by id with their seeds, plans by id with their bytes."""

    jobs: dict[str, int] = field(default_factory=dict)
    plans: dict[str, bytes] = field(default_factory=dict)
    refusals: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class PatientClient:
    """Submits jobs and asks for plans through whatever happens to the service."""

    def __init__(self, base_url: str, accepted: Accepted) -> None:
        self._http = httpx.Client(base_url=base_url, timeout=60.0, trust_env=False)
        self._accepted = accepted

    def quantize(self, seed: int) -> str:
        """Return the id of an accepted job."""
        body = {"model": TINY_MODEL, "scheme": "nf4", "seed": seed}
        answer = self._answer("/quantize", body, {"idempotency-key": f"job-{seed}"})
        job_id: str = answer.json()["job"]["job_id"]
        with self._accepted.lock:
            self._accepted.jobs[job_id] = seed
        return job_id

    def plan(self, number: int) -> str:
        """Return the id of a stored plan that nobody asked for before."""
        body = {
            "model": TINY_MODEL,
            "hardware": {"gpu": "h100-sxm-80gb", "gpus": 1},
            "serving": {"max_model_len": 64 + number, "concurrency": 1},
        }
        answer = self._answer("/plan/infer", body, {})
        plan_id: str = answer.json()["plan_id"]
        with self._accepted.lock:
            self._accepted.plans[plan_id] = answer.content
        return plan_id

    def close(self) -> None:
        self._http.close()

    def _answer(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            pause_seconds = RETRY_SECONDS
            try:
                response = self._http.post(path, json=body, headers=headers)
                if response.is_success:
                    return response
                if response.status_code not in REFUSALS:
                    raise AssertionError(f"{path} answered {response.status_code}: {response.text}")
                if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
                    pause_seconds = FULL_RETRY_SECONDS
            except httpx.TransportError:
                pass
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} was not answered within {PATIENCE_SECONDS:g} s.")
            with self._accepted.lock:
                self._accepted.refusals += 1
            time.sleep(pause_seconds)
