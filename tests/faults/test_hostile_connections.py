"""What strangers send through a socket: heads and bodies that no client sends, to a process of its own.

Each is answered with what it is, or its connection closed; and the process still answers the next one.
"""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest

from plimsoll.api.connections import MOST_HEAD_BYTES
from tests.faults.client import TINY_MODEL
from tests.faults.processes import PATIENCE_SECONDS, Part, Parts, address, is_ready, wait_for

# What a head or a body may take here: the slow ones are soon given up, and a busy machine is not taken for one.
SLOW_SECONDS = 10.0
# Nothing here takes as long but on a machine that stands still.
ANSWER_SECONDS = 240.0
MOST_BODY_BYTES = 65_536
PIPELINED = 1_000
STREAMS = 500
SLOW_CLIENTS = 100

HEALTH = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
QUESTION = json.dumps(
    {"model": TINY_MODEL, "hardware": {"gpu": "h100-sxm-80gb", "gpus": 1}, "serving": {"max_model_len": 64}}
).encode()


@pytest.fixture(scope="module")
def api(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Part]:
    parts = Parts(tmp_path_factory.mktemp("hostile"), module_database_url)
    started = parts.api(body_timeout_seconds=SLOW_SECONDS, max_body_bytes=MOST_BODY_BYTES)
    wait_for(lambda: is_ready(started), lambda: started.log)
    yield started
    parts.stop()


@pytest.fixture(autouse=True)
def _still_answers(api: Part) -> Iterator[None]:
    """Look after each test that the process is the same, answers, and reported no error of its own."""
    yield
    assert api.process is not None
    assert api.process.poll() is None, api.log
    assert is_ready(api)
    assert "Traceback" not in api.log


def connected(api: Part) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(api.variables["PLIMSOLL_PORT"])), timeout=ANSWER_SECONDS)


def post(*headers: str, body: bytes = QUESTION, length: bool = True) -> bytes:
    """Return a planning request with these headers beside the usual ones."""
    lines = ["POST /plan/infer HTTP/1.1", "host: localhost", "content-type: application/json", *headers]
    if length:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunked(*chunks: bytes) -> bytes:
    """Return a body in chunks."""
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


def until_closed(connection: socket.socket) -> bytes:
    """Return everything until the server closes the connection."""
    received = b""
    # Reset where something of ours is still unread.
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received


def answers(api: Part, sent: bytes) -> list[int]:
    """Send bytes, then no more, and return the status of every answer until the connection is closed."""
    with connected(api) as connection:
        connection.sendall(sent)
        received = until_closed(connection)
    return [int(part.split(b" ", 1)[0]) for part in received.split(b"HTTP/1.1 ")[1:]]


def first_status(api: Part, sent: bytes) -> int:
    return answers(api, sent)[0]


def test_what_follows_uses_a_sound_request(api: Part):
    assert first_status(api, post()) == 200


@pytest.mark.parametrize(
    "headers",
    [
        ("content-length: 5",),
        ("content-length: 5, 5",),
        ("content-length: -1",),
        ("content-length: +5",),
        ("content-length: 0x10",),
        ("content-length: 99999999999999999999999",),
        ("transfer-encoding: chunked",),
        ("transfer-encoding: chunked, identity",),
        ("transfer-encoding: xchunked",),
        ("transfer-encoding : chunked",),
        ("x-folded: a\r\n b: c\x00d",),
    ],
)
def test_a_head_that_two_servers_could_read_in_two_ways_is_refused_and_smuggles_nothing(
    api: Part, headers: tuple[str, ...]
):
    # Behind it stands what a proxy might have taken for the body, and this server must not take for a request.
    smuggled = b"GET /smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n"
    statuses = answers(api, post(*headers, body=smuggled))
    assert [status // 100 for status in statuses] == [4]
    assert "/smuggled" not in httpx.get(f"{address(api)}/metrics", trust_env=False, timeout=60).text


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\r\n\r\n\0\x01\x02\xff\r\n\r\n", 400),
        (b"GET http://169.254.169.254/latest HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", 404),
        (b"CONNECT example.com:443 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", 400),
        (b"GET /healthz HTTP/9.9\r\nhost: localhost\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /" + b"a" * MOST_HEAD_BYTES + b" HTTP/1.1\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nx: " + b"a" * 2 * MOST_HEAD_BYTES, 400),
        (b"GET /healthz HTTP/1.1\r\n" + b"x: y\r\n" * MOST_HEAD_BYTES, 400),
    ],
)
def test_a_head_that_is_none_or_too_large(api: Part, sent: bytes, status: int):
    assert first_status(api, sent) == status


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "\xff\xfe"}',
        b'{"hardware": {"gpus": NaN}}',
        b'{"hardware": {"gpus": -Infinity}}',
        b'{"model": "a", "model": "b"}',
        b"[" * (MOST_BODY_BYTES - 1),
        b'{"a":' * (MOST_BODY_BYTES // 5 - 1),
        b'{"hardware": {"gpus": ' + b"9" * 60_000 + b"}}",
        b'{"hardware": {"gpus": 1e999999}}',
        b'{"model": "\\ud800"}',
        b"",
        b"\0" * 1_000,
    ],
)
def test_a_body_that_is_no_sound_json(api: Part, body: bytes):
    assert first_status(api, post("connection: close", body=body)) in (400, 422)


def test_a_compressed_body_is_refused_and_not_expanded(api: Part):
    bomb = gzip.compress(bytes(50_000_000), 9)
    assert len(bomb) < MOST_BODY_BYTES
    assert first_status(api, post("connection: close", "content-encoding: gzip", body=bomb)) == 415


def test_a_body_in_chunks_is_read_and_one_beyond_the_limit_is_refused_before_its_end(api: Part):
    head = post("transfer-encoding: chunked", "connection: close", body=b"", length=False)
    assert first_status(api, head + chunked(QUESTION[:10], QUESTION[10:])) == 200
    # Sixteen times what may be, and never an end: the answer does not wait for it.
    endless = b"".join(b"%x\r\n%s\r\n" % (MOST_BODY_BYTES, b" " * MOST_BODY_BYTES) for _ in range(16))
    with connected(api) as connection:
        threading.Thread(target=_send, args=(connection, head + endless), daemon=True).start()
        assert b"HTTP/1.1 413" in until_closed(connection)


@pytest.mark.parametrize("size", [b"-1", b"0x10", b"g", b"ffffffffffffffffff"])
def test_a_chunk_of_no_size(api: Part, size: bytes):
    head = post("transfer-encoding: chunked", body=b"", length=False)
    assert first_status(api, head + size + b"\r\n{}\r\n0\r\n\r\n") // 100 == 4


def test_a_client_that_closes_its_half_is_still_answered(api: Part):
    with connected(api) as connection:
        connection.sendall(post("connection: close"))
        connection.shutdown(socket.SHUT_WR)
        received = until_closed(connection)
    # uvicorn takes the end of what a client sends for its leaving: no answer, or a whole one.
    assert received == b"" or received.startswith(b"HTTP/1.1 200")


def test_clients_that_leave_in_the_middle_leave_nothing_behind(api: Part):
    for cut in range(0, len(post()), 7):
        with connected(api) as connection:
            connection.sendall(post()[:cut])
            # A reset instead of an orderly end.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert first_status(api, post("connection: close")) == 200


def test_a_thousand_requests_sent_at_once_on_one_connection_are_answered_in_order(api: Part):
    last = HEALTH.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    with connected(api) as connection:
        threading.Thread(target=_send, args=(connection, HEALTH * (PIPELINED - 1) + last), daemon=True).start()
        received = until_closed(connection)
    assert received.count(b"HTTP/1.1 200") == PIPELINED


@contextmanager
def many(api: Part, count: int) -> Iterator[list[socket.socket]]:
    """Yield so many open connections, closed afterwards whatever happens."""
    with ExitStack() as stack:
        yield [stack.enter_context(connected(api)) for _ in range(count)]


def test_many_slow_clients_keep_nobody_waiting_and_are_given_up(api: Part):
    with many(api, SLOW_CLIENTS) as connections, ThreadPoolExecutor(SLOW_CLIENTS) as pool:
        for number, connection in enumerate(connections):
            # Half of them stop within the head, the others within the body.
            connection.sendall(HEALTH[:-2] if number % 2 else post()[:-1])
        assert first_status(api, post("connection: close")) == 200
        ends = list(pool.map(until_closed, connections))
    assert {end[:12] for end in ends[1::2]} == {b""}
    assert {end[:12] for end in ends[::2]} == {b"HTTP/1.1 408"}


def test_five_hundred_streams_of_events_leave_everyone_else_answered(api: Part):
    with (
        httpx.Client(base_url=address(api), trust_env=False, timeout=PATIENCE_SECONDS) as client,
        many(api, STREAMS) as streams,
    ):
        job_id = client.post("/quantize", json={"model": TINY_MODEL, "scheme": "nf4"}).json()["job"]["job_id"]
        for stream in streams:
            stream.sendall(f"GET /jobs/{job_id}/events HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        for stream in streams:
            assert b"queued" in _until(stream, b"queued")
        for path in ("/healthz", "/readyz", "/plans", f"/jobs/{job_id}", "/metrics"):
            assert client.get(path).status_code == 200
        assert client.post("/plan/infer", content=QUESTION, headers={"content-type": "application/json"}).is_success
        client.post(f"/jobs/{job_id}/cancel")
        for stream in streams:
            assert b"cancelled" in _until(stream, b"cancelled")


def _until(connection: socket.socket, wanted: bytes) -> bytes:
    received = b""
    while wanted not in received and (part := connection.recv(65536)):
        received += part
    return received


def _send(connection: socket.socket, data: bytes) -> None:
    # Closed while we still send, as it has to be.
    with suppress(OSError):
        connection.sendall(data)
