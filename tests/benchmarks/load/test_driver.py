import asyncio
import math
from contextlib import suppress

import pytest

from benchmarks.load.driver import Connection, Load, get, open_loop, part_within, post

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


async def asked_twice(answers_a_connection: int) -> int:
    """Ask twice a server that closes each connection after so many answers; return how many connections there were."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for _ in range(answers_a_connection):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ANSWER)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        connection = Connection(server.sockets[0].getsockname()[1])
        for _ in range(2):
            assert await connection.ask(get("/")) == b"{}"
            await asyncio.sleep(0.05)
        connection.close()
    return connections


@pytest.mark.parametrize(("answers", "connections"), [(1, 2), (2, 1)])
async def test_a_connection_that_was_closed_while_it_was_idle_is_opened_anew(answers: int, connections: int):
    assert await asked_twice(answers) == connections


async def test_a_new_connection_that_is_closed_without_an_answer_is_an_error():
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await asked_twice(0)


async def load_of(*statuses: int) -> Load:
    """Ask once for each status, in which order the server answers with them, at a thousand requests a second."""
    body = b'{"code":"overloaded"}'
    left = iter(statuses)
    under_way: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way.add(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (next(left), len(body)) + body)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        try:
            return await open_loop(port, lambda _: get("/"), requests_per_second=1000, seconds=len(statuses) / 1000)
        finally:
            # They end with their connections, which the sender has closed.
            await asyncio.gather(*(task for task in under_way if task is not None))


async def test_what_is_refused_for_the_load_is_counted_by_its_code_and_not_among_the_answers():
    load = await load_of(200, 429, 503, 200)
    assert (load.requests, load.refused, set(load.refusals)) == (2, 2, {"overloaded"})


async def test_any_other_status_ends_the_measurement():
    with pytest.raises(ExceptionGroup) as raised:
        await load_of(500)
    assert raised.group_contains(RuntimeError)


def test_a_part_of_no_requests_stayed_within_no_time():
    assert math.isnan(part_within((), 0.5))


def test_half_of_four_requests_stayed_within_the_third():
    assert part_within((1.0, 2.0, 3.0, 4.0), 0.5) == 3.0


def test_a_request_shows_the_key_it_is_given():
    assert b"\r\nauthorization: Bearer secret\r\n" in get("/", key="secret")
    assert b"authorization" not in post("/", b"{}")
