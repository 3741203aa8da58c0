"""Slow and endless requests, against a real server on a port of this machine."""

from __future__ import annotations

import http.client
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import httpx
import pytest
import uvicorn

from plimsoll.api.connections import MOST_DROPPED_BYTES, MOST_HEAD_BYTES
from plimsoll.api.main import server_config
from plimsoll.service.ground.settings import Settings

START_SECONDS = 30
# Long enough that a whole request gets through on a busy machine, short enough to be waited for.
HEAD_AND_BODY_SECONDS = 2.0
PATIENCE_SECONDS = 60.0
MOST_BODY_BYTES = 2 * 2**20

HEAD = b"POST /plan/infer HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
WHOLE = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
UNREAD = b"POST /no/such/address HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n"


@pytest.fixture(scope="module")
def port(module_database_url: str) -> Iterator[int]:
    config = server_config(
        Settings(
            database_url=module_database_url,
            body_timeout_seconds=HEAD_AND_BODY_SECONDS,
            max_body_bytes=MOST_BODY_BYTES,
        )
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(START_SECONDS)


@pytest.fixture
def connection(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as opened:
        yield opened


def all_that_comes(connection: socket.socket) -> bytes:
    """Return everything until the server closes the connection."""
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except ConnectionResetError:
        pass  # Closed with something of ours still unread.
    return received


def answered(connection: socket.socket, status: int = 200) -> bool:
    """Return whether a request is answered with that status, its whole body read."""
    with http.client.HTTPResponse(connection, method="GET") as response:
        response.begin()
        response.read()
        return response.status == status


@pytest.mark.parametrize("begun", [b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"])
def test_a_head_that_does_not_come_costs_the_connection(connection: socket.socket, begun: bytes):
    connection.sendall(begun)
    assert all_that_comes(connection) == b""


def test_the_second_head_of_a_connection_is_waited_for_no_longer(connection: socket.socket):
    connection.sendall(WHOLE)
    assert answered(connection)
    connection.sendall(WHOLE[:-4])
    assert all_that_comes(connection) == b""


@pytest.mark.parametrize("begun", [b"\r\n", b"\r\n\r\n"])
def test_empty_lines_after_an_answer_keep_no_connection(connection: socket.socket, begun: bytes):
    connection.sendall(WHOLE)
    assert answered(connection)
    connection.sendall(begun)
    assert all_that_comes(connection) == b""


def test_a_protocol_that_was_asked_for_in_vain_keeps_no_connection(connection: socket.socket):
    connection.sendall(WHOLE[:-2] + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n")
    assert answered(connection)
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\n")
    assert all_that_comes(connection) == b""


@pytest.mark.parametrize("begun", [b"{", b" " * 100], ids=["in part", "whole"])
def test_the_rest_of_a_body_that_nobody_reads_keeps_no_connection(connection: socket.socket, begun: bytes):
    connection.sendall(UNREAD)
    assert answered(connection, 404)
    connection.sendall(begun)
    assert all_that_comes(connection) == b""


def test_a_large_body_that_nobody_reads_is_no_head(connection: socket.socket):
    body = b" " * (2 * MOST_HEAD_BYTES)
    connection.sendall(UNREAD.replace(b"100", str(len(body)).encode()))
    assert answered(connection, 404)
    connection.sendall(body + WHOLE)
    assert answered(connection)


def test_a_body_that_does_not_come_is_refused_and_the_connection_closed(connection: socket.socket):
    connection.sendall(HEAD + b'{"model":')
    answer = all_that_comes(connection)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"body-too-slow" in answer


def test_a_body_that_trickles_is_no_better(connection: socket.socket):
    connection.sendall(HEAD)
    stop = threading.Event()

    def trickle() -> None:
        while not stop.wait(HEAD_AND_BODY_SECONDS / 10):
            try:
                connection.send(b" ")
            except OSError:
                return

    sender = threading.Thread(target=trickle)
    sender.start()
    answer = all_that_comes(connection)
    stop.set()
    sender.join()
    assert answer.startswith(b"HTTP/1.1 408")


def test_a_head_without_end_is_refused(connection: socket.socket):
    connection.sendall(b"GET /healthz HTTP/1.1\r\nx: " + b"a" * MOST_HEAD_BYTES)
    assert all_that_comes(connection).startswith(b"HTTP/1.1 400")


def test_a_large_head_that_ends_is_answered(connection: socket.socket):
    # The whole head is as large as it may be.
    rest = MOST_HEAD_BYTES - len(WHOLE) - len(b"x: \r\n")
    connection.sendall(WHOLE[:-2] + b"x: " + b"a" * rest + b"\r\n\r\n")
    assert answered(connection)


def test_many_requests_on_one_connection_are_answered(connection: socket.socket):
    for _ in range(20):
        connection.sendall(WHOLE)
        assert answered(connection)


LARGE_BODY = b" " * (MOST_BODY_BYTES + 3 * 2**20)
REPEATS = 10


@pytest.mark.parametrize("how", ["content-length", "chunked"])
def test_urllib_sees_every_refusal_of_a_large_body(port: int, how: str):
    def body() -> Iterator[bytes]:
        for start in range(0, len(LARGE_BODY), 2**16):
            yield LARGE_BODY[start : start + 2**16]

    seen = []
    for _ in range(REPEATS):
        data = LARGE_BODY if how == "content-length" else body()
        headers = {"content-type": "application/json"}
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/plan/infer", data, headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked, timeout=PATIENCE_SECONDS)  # noqa: S310 - our own server
        seen.append(refused.value.code)
        refused.value.close()
    assert seen == [413] * REPEATS


def test_httpx_sees_every_refusal_of_a_large_body(port: int):
    statuses = [
        httpx.post(f"http://127.0.0.1:{port}/plan/infer", content=LARGE_BODY).status_code for _ in range(REPEATS)
    ]
    assert statuses == [413] * REPEATS


def test_a_client_that_sends_everything_before_it_reads_sees_the_refusal(port: int):
    for _ in range(REPEATS):
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as connection:
            connection.sendall(HEAD.replace(b"100", str(len(LARGE_BODY)).encode()))
            connection.sendall(LARGE_BODY)
            answer = b""
            while part := connection.recv(65536):
                answer += part
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"body-too-large" in answer


def bytes_taken(connection: socket.socket) -> int:
    """Return how much of an endless body is taken before the connection is reset."""
    sent = 0
    try:
        while sent < 4 * MOST_DROPPED_BYTES:
            connection.sendall(LARGE_BODY)
            sent += len(LARGE_BODY)
    except (ConnectionResetError, BrokenPipeError):
        pass
    return sent


def test_a_refused_client_that_never_ends_is_dropped(connection: socket.socket):
    connection.sendall(HEAD.replace(b"100", b"999999999999"))
    assert MOST_DROPPED_BYTES / 2 < bytes_taken(connection) < 2 * MOST_DROPPED_BYTES
