"""How long reviews take at a steady rate: `python -m benchmarks.admission [reviews a second] [seconds]`.

One process of the API on a database of its own, both on loopback. Reviews are sent at their time, whether or not those
before them are answered, and the clock runs from that time to the answer, so that waiting counts. Three kinds: a stored
plan's id, a plan written inline, and a launch command, each of a hundred workloads that were seen before; and launch
commands never seen before, at a twentieth of the rate, which is as often as a cluster sees a new one at the most.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.load.server import running_api

RATE, SECONDS = 200, 5.0
WORKLOADS = 100
NEW_PART = 20
# A machine that falls behind shows it in the times; all reviews are answered in the end.
LONGEST_SECONDS = 600.0
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}


def main() -> None:
    """Print a row for each kind of review."""
    rate = int(sys.argv[1]) if len(sys.argv) > 1 else RATE
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else SECONDS
    # Full collections of the sender's own objects would count as the service's time: up to a second each.
    gc.disable()
    with (
        tempfile.TemporaryDirectory(prefix="plimsoll-admission-") as folder,
        running_api(Path(folder), log_level="error") as (url, _),
    ):
        now = datetime.now(UTC).date()
        print(f"{now}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {rate} reviews a second")
        print("| reviews | sent | p50 ms | p99 ms | longest ms |\n|---|--:|--:|--:|--:|")
        asyncio.run(_all(url, rate, seconds))


async def _all(url: str, rate: int, seconds: float) -> None:
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=200)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=LONGEST_SECONDS, trust_env=False) as client:
        plan_id = (await client.post("/plan/infer", json=_request(0))).raise_for_status().json()["plan_id"]
        kinds = {
            "stored plan": [_review({"plimsoll.dev/plan-id": plan_id}, n) for n in range(WORKLOADS)],
            "inline plan": [_review({"plimsoll.dev/plan": json.dumps(_request(n))}, n) for n in range(WORKLOADS)],
            "launch command": [_review({}, n) for n in range(WORKLOADS)],
        }
        for name, reviews in kinds.items():
            for review in reviews:
                await _ask(client, review)
            _print(name, await _at_rate(client, reviews, rate, seconds))
        new_rate = max(rate // NEW_PART, 1)
        new = [_review({}, WORKLOADS + n) for n in range(int(new_rate * seconds))]
        _print(f"launch command, new ({new_rate} a second)", await _at_rate(client, new, new_rate, seconds))


async def _at_rate(client: httpx.AsyncClient, reviews: list[bytes], rate: int, seconds: float) -> list[float]:
    started = time.perf_counter()

    async def one(number: int) -> float:
        due = started + number / rate
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        await _ask(client, reviews[number % len(reviews)])
        return time.perf_counter() - due

    return list(await asyncio.gather(*(one(number) for number in range(int(rate * seconds)))))


async def _ask(client: httpx.AsyncClient, review: bytes) -> None:
    headers = {"content-type": "application/json"}
    response = await client.post("/admission/validate?timeout=10s", content=review, headers=headers)
    answer = response.raise_for_status().json()["response"]
    if not answer["allowed"] or "warnings" in answer:
        raise ValueError(f"not admitted: {answer}")


def _print(name: str, seconds: list[float]) -> None:
    p50, p99 = np.percentile(seconds, (50, 99)) * 1e3
    print(f"| {name} | {len(seconds)} | {p50:.1f} | {p99:.1f} | {max(seconds) * 1e3:.1f} |", flush=True)


def _request(number: int) -> dict[str, Any]:
    hardware = {"gpu": "h100-sxm-80gb", "gpus": 1}
    serving = {"max_model_len": 8_192 + 16 * number}
    return {"model": MODEL, "hardware": hardware, "serving": serving, "layout": {"tensor_parallel": 1}}


def _review(annotations: dict[str, str], number: int) -> bytes:
    container = {
        "name": "engine",
        "image": "vllm/vllm-openai:v0.19.0",
        "args": ["--model", MODEL, "--max-model-len", str(8_192 + 16 * number)],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    name = f"chat-{number}"
    manifest = {
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"replicas": 1, "template": {"spec": {"nodeSelector": H100, "containers": [container]}}},
    }
    request = {
        "uid": f"uid-{number}",
        "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
        "operation": "CREATE",
        "name": name,
        "namespace": "serving",
        "object": manifest,
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(review).encode()


if __name__ == "__main__":
    main()
