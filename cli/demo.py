"""The main job in one go, against a running service: plan, prove, size, quantize."""

from __future__ import annotations

import sys
import time
from typing import Any

import httpx

from cli.credentials import key_header
from service import main_job

POLL_SECONDS = 0.5
JOB_TIMEOUT_SECONDS = 900.0
FINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})


class DemoFailed(Exception):
    """A step did not answer as it should."""


def run_demo(url: str) -> int:
    """Run the four steps and print their tables; return the exit status."""
    with httpx.Client(base_url=url, timeout=60.0, trust_env=False, headers=key_header()) as client:
        try:
            _train_and_validate(client)
            _heading("3. Size Qwen2.5-72B serving on 4 H100s")
            _print_text(client, f"/plans/{_post(client, '/plan/infer', main_job.SIZE_SERVING)['plan_id']}")
            _heading("4. Quantize Llama-3.2-1B (random weights) to NF4")
            _follow(client, _post(client, "/quantize", main_job.QUANTIZE)["job"]["job_id"])
        except httpx.TransportError as error:
            sys.stderr.write(f"No service answers on {url} ({error}). Start one with `make serve`.\n")
            return 2
        except DemoFailed as error:
            sys.stderr.write(f"{error}\n")
            return 1
    return 0


def _train_and_validate(client: httpx.Client) -> None:
    _heading("1. Plan Llama-3.1-8B training on 8 H100s")
    plan_id = _post(client, "/plan/train", main_job.PLAN_TRAINING)["plan_id"]
    _print_text(client, f"/plans/{plan_id}")
    _heading("2. Validate that plan by tracing one rank's step")
    _follow(client, _post(client, f"/plans/{plan_id}/validate", {"level": "trace"})["job_id"])


def _post(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(path, json=body)
    if answer.is_error:
        raise DemoFailed(f"POST {path} answered {answer.status_code}: {answer.text}")
    result: dict[str, Any] = answer.json()
    return result


def _follow(client: httpx.Client, job_id: str) -> None:
    """Wait for a job, showing its progress on a terminal, then print its result."""
    deadline = time.monotonic() + JOB_TIMEOUT_SECONDS
    while True:
        job = client.get(f"/jobs/{job_id}").raise_for_status().json()
        if job["state"] in FINAL_STATES:
            break
        if time.monotonic() > deadline:
            raise DemoFailed(f"Job {job_id} is still {job['state']}; is a worker running?")
        _show_progress(job)
        time.sleep(POLL_SECONDS)
    _clear_line()
    _print_text(client, f"/jobs/{job_id}")
    if job["state"] != "succeeded":
        raise DemoFailed(f"Job {job_id} {job['state']}: {job['error']}")


def _show_progress(job: dict[str, Any]) -> None:
    if sys.stdout.isatty():
        progress = job["progress"] or {}
        _clear_line()
        sys.stdout.write(f"{job['state']}: {progress.get('message') or 'waiting for a worker'}")
        sys.stdout.flush()


def _clear_line() -> None:
    if sys.stdout.isatty():
        sys.stdout.write("\r\x1b[K")


def _print_text(client: httpx.Client, path: str) -> None:
    sys.stdout.write(client.get(path, headers={"accept": "text/plain"}).raise_for_status().text.rstrip() + "\n")


def _heading(text: str) -> None:
    sys.stdout.write(f"\n{text}\n{'=' * len(text)}\n\n")
    sys.stdout.flush()
