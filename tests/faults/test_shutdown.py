"""The API is told to stop: requests under way are answered, streams are ended, and the process goes."""

from __future__ import annotations

import signal
import socket
import threading
import time
from contextlib import suppress

import httpx

from tests.faults.client import TINY_MODEL
from tests.faults.processes import PATIENCE_SECONDS, Parts, address, is_ready, wait_for

STREAMS = 100


def stop(api) -> None:
    """Tell an API to stop, and wait for its end, which nobody but itself may bring about."""
    api.process.send_signal(signal.SIGTERM)
    assert api.process.wait(PATIENCE_SECONDS) in (0, -signal.SIGTERM)


def test_a_request_under_way_is_answered_before_the_end(parts: Parts):
    api = parts.api()
    wait_for(lambda: is_ready(api), lambda: api.log)
    body = b'{"model": "llama-3.1-8b", "hardware": {"gpu": "h100-sxm-80gb", "gpus": 1}, "serving": {}}'
    head = (
        f"POST /plan/infer HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", int(api.variables["PLIMSOLL_PORT"])), timeout=60) as connection:
        # It is under way once its head is there; the rest comes after the service was told to stop.
        connection.sendall(head.encode() + body[:10])
        wait_for(lambda: httpx.get(f"{address(api)}/healthz", trust_env=False, timeout=60).is_success)
        api.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not accepts(api))
        connection.sendall(body[10:])
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    assert api.process.wait(PATIENCE_SECONDS) in (0, -signal.SIGTERM)


def accepts(api) -> bool:
    """Return whether new connections are taken."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(api.variables["PLIMSOLL_PORT"]))) == 0


def test_a_hundred_streams_are_ended_and_the_process_goes(parts: Parts):
    api = parts.api()
    wait_for(lambda: is_ready(api), lambda: api.log)
    body = {"model": TINY_MODEL, "scheme": "nf4"}
    job = httpx.post(f"{address(api)}/quantize", json=body, trust_env=False, timeout=60).json()["job"]
    begun, ended = threading.Semaphore(0), threading.Semaphore(0)

    path = f"{address(api)}/jobs/{job['job_id']}/events"

    def follow() -> None:
        with (
            suppress(httpx.TransportError),
            httpx.stream("GET", path, trust_env=False, timeout=PATIENCE_SECONDS) as events,
        ):
            lines = events.iter_lines()
            next(lines)
            begun.release()
            for _ in lines:
                pass
        ended.release()

    for _ in range(STREAMS):
        threading.Thread(target=follow, daemon=True).start()
    for _ in range(STREAMS):
        assert begun.acquire(timeout=PATIENCE_SECONDS)
    began_at = time.monotonic()
    stop(api)
    print(f"{STREAMS} streams and the process ended {time.monotonic() - began_at:.1f} s after SIGTERM")
    for _ in range(STREAMS):
        assert ended.acquire(timeout=PATIENCE_SECONDS)
