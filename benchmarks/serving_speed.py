"""Time the serving planner alone, and `POST /plan/infer` over HTTP on one connection.

    python benchmarks/serving_speed.py

Planner times are of the processor, the fastest and the median of many, the model described beforehand as the service
keeps it; request times are of the wall, asked of the application on an embedded PostgreSQL without a network between.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from plimsoll.api.app import create_app
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.planning import plan_serving
from plimsoll.service.catalogue.gpus import resolve_hardware
from plimsoll.service.ground.settings import Settings
from plimsoll.service.observability.logging import configure_logging
from plimsoll.service.persistence.upgrade import upgrade
from plimsoll.service.requests.hardware import Fleet
from plimsoll.service.requests.serving import InferRequest
from plimsoll.service.running.postgres.embedded import EmbeddedPostgres

REPETITIONS = 41
HTTP_REPETITIONS = 100
# The first of a process read tables and fill what is kept of a model.
WARMING = 3
MILLISECONDS = 1e3

FIXED = {"tensor_parallel": 4, "pipeline_parallel": 1, "data_parallel": 1}
LEVEL = {"ttft_seconds": 1.0, "tpot_seconds": 0.05}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question as a client sends it."""

    name: str
    body: Mapping[str, Any]


def _body(model: str, gpu: str, gpus: object, serving: Mapping[str, Any], **parts: Any) -> dict[str, Any]:
    return {"model": model, "hardware": {"gpu": gpu, "gpus": gpus}, "serving": {"max_model_len": 32768, **serving},
            **parts}  # fmt: skip


QWEN, DEEPSEEK, LLAMA = "Qwen/Qwen2.5-72B-Instruct", "deepseek-ai/DeepSeek-V3", "meta-llama/Llama-3.1-8B"
CASES = (
    Case(
        name="Llama-3.1-8B, fixed layout on 1 GPU",
        body=_body(LLAMA, "h100", 1, {"concurrency": 64}, layout={**FIXED, "tensor_parallel": 1}),
    ),
    Case(name="Qwen2.5-72B, fixed layout on 4 GPUs", body=_body(QWEN, "h100", 4, {"concurrency": 64}, layout=FIXED)),
    Case(name="Qwen2.5-72B, 64 GPUs, service level", body=_body(QWEN, "h100", 64, {"slo": LEVEL})),
    Case(
        name="Qwen2.5-72B, 1 to 64 GPUs, service level, 20 requests/s",
        body=_body(QWEN, "h100", {"min": 1, "max": 64}, {"slo": LEVEL, "requests_per_second": 20.0}),
    ),
    Case(
        name="DeepSeek-V3, 64 GPUs, service level",
        body=_body(DEEPSEEK, "h200", 64, {"slo": LEVEL, "weights": "fp8"}),
    ),
    Case(
        name="Qwen2.5-72B, 64 GPUs, service level, four formats",
        body=_body(QWEN, "h100", 64, {"slo": LEVEL, "weights": ["bf16", "fp8"], "kv_cache": ["bf16", "fp8"]}),
    ),
)
HTTP_CASES = CASES[:3]


def main() -> None:
    """Print both tables as Markdown."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--repetitions", type=int, default=REPETITIONS)
    options.add_argument("--without-http", action="store_true")
    chosen = options.parse_args()
    # Else each plan that is made is told between the rows.
    configure_logging("warning")
    print(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| the planner alone | layouts | fastest, ms | median, ms |\n|---|--:|--:|--:|")
    for case in CASES:
        _print_planning(case, chosen.repetitions)
    if not chosen.without_http:
        print("\n| POST /plan/infer | new, median ms | new, fastest ms | asked again, median ms |\n|---|--:|--:|--:|")
        asyncio.run(_print_requests())


def question_of(body: Mapping[str, Any]) -> ServingQuestion:
    """Return a request's question, its model described once."""
    request = InferRequest.model_validate(body)
    if isinstance(request.hardware, Fleet) or not isinstance(request.model, str):
        raise TypeError("A case names one model of the catalogue and one kind of GPUs.")
    model = catalogue().model(request.model)
    hardware = resolve_hardware(request.hardware, catalogue())
    return request.to_question(describe_config(model.config, name=model.id), hardware)


def _print_planning(case: Case, repetitions: int) -> None:
    question = question_of(case.body)
    times = []
    layouts = 0
    for _ in range(WARMING + repetitions):
        began = time.process_time()
        layouts = plan_serving(question).search.layouts_considered
        times.append(time.process_time() - began)
    counted = times[WARMING:]
    print(
        f"| {case.name} | {layouts} | {min(counted) * MILLISECONDS:.2f} "
        f"| {statistics.median(counted) * MILLISECONDS:.2f} |",
        flush=True,
    )


async def _print_requests() -> None:
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder)) as server:
        upgrade(server.url)
        app = create_app(Settings(database_url=server.url))
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60.0) as client,
        ):
            for case in HTTP_CASES:
                # Each number another length of answers, so that no question was answered before.
                new = [await _seconds(client, _numbered(case.body, number)) for number in range(HTTP_REPETITIONS)]
                again = [await _seconds(client, _numbered(case.body, 0)) for _ in range(HTTP_REPETITIONS)]
                print(
                    f"| {case.name} | {statistics.median(new[WARMING:]) * MILLISECONDS:.1f} "
                    f"| {min(new[WARMING:]) * MILLISECONDS:.1f} | {statistics.median(again) * MILLISECONDS:.2f} |",
                    flush=True,
                )


def _numbered(body: Mapping[str, Any], number: int) -> dict[str, Any]:
    return {**body, "serving": {**body["serving"], "output_tokens": 256 + number}}


async def _seconds(client: httpx.AsyncClient, body: Mapping[str, Any]) -> float:
    began = time.perf_counter()
    (await client.post("/plan/infer", json=body)).raise_for_status()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
