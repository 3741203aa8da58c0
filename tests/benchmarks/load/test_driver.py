import asyncio

import pytest

from benchmarks.load.driver import Connection, get

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
