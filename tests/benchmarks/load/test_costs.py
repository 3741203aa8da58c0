import os
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

from benchmarks.load.costs import Case, table
from benchmarks.load.sender import Round, sent_round

PROCESS = psutil.Process(os.getpid())


def case(name: str, *rounds: tuple[int, float]) -> Case:
    made = [Round(requests=requests, seconds=2.0, processor_seconds=processor) for requests, processor in rounds]
    return Case(name=name, port=0, server=PROCESS, request=lambda _: b"", rounds=made)


def test_a_row_has_the_highest_rate_and_the_least_processor_time_as_shares_of_the_first():
    cases = [case("bare", (2_000, 1.0), (4_000, 1.0)), case("ours", (1_000, 0.5), (800, 0.5))]
    # 4,000 in 2 s are 2,000 a second at 0.25 ms each; 1,000 in 2 s are 500 at 0.5 ms.
    assert table(cases).splitlines()[2:] == [
        "| bare | 2,000 | 1.000 | 0.250 | 1.000 |",
        "| ours | 500 | 0.250 | 0.500 | 0.500 |",
    ]


@contextmanager
def answering(*pieces: bytes) -> Iterator[int]:
    """Yield the port of a server that answers each request with the pieces, one after the other."""

    class Answers(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(ConnectionError):
                while self.request.recv(1_000):
                    for piece in pieces:
                        self.request.sendall(piece)
                        time.sleep(0.001)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def test_an_answer_in_pieces_is_one_answer():
    with answering(b"HTTP/1.1 200 OK\r\ncontent-len", b"gth: 4\r\n\r\n{", b"12}") as port:
        done = sent_round(port, lambda _: b"GET / HTTP/1.1\r\n\r\n", PROCESS, connections=2, seconds=0.1)
    # Each takes three waits of a millisecond at the least.
    assert 2 <= done.requests <= 2 * done.seconds / 0.002


def test_another_status_ends_the_round():
    with (
        answering(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n") as port,
        pytest.raises(RuntimeError, match="503"),
    ):
        sent_round(port, lambda _: b"GET / HTTP/1.1\r\n\r\n", PROCESS, connections=1, seconds=0.1)
