"""A hub on this machine's loopback, for one test at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(slots=True)
class Answer:
    """What the hub says to one path."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    delay_seconds: float = 0.0
    drip_seconds: float = 0.0


@dataclass(slots=True)
class Hub:
    """A running hub: what it answers by path, and what it was asked."""

    port: int = 0
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Yield a hub that answers 404 until it is told otherwise."""
    hub = Hub()
    stopped = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.asked.append(self.path)
            hub.hosts.append(self.headers["host"])
            hub.tokens.append(self.headers["authorization"])
            answer = hub.answers.get(self.path, Answer(status=404))
            stopped.wait(answer.delay_seconds)
            try:
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if "content-length" not in answer.headers:
                    self.send_header("content-length", str(len(answer.body)))
                self.end_headers()
                step = 1 if answer.drip_seconds else len(answer.body) or 1
                for begin in range(0, len(answer.body), step):
                    self.wfile.write(answer.body[begin : begin + step])
                    self.wfile.flush()
                    if answer.drip_seconds and stopped.wait(answer.drip_seconds):
                        return
            except OSError:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        stopped.set()
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
