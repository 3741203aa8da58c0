"""A connection's first moments: how long and how large a request's head may be.

uvicorn's protocol on httptools limits neither: a client that sends its head a byte at a time, or
without end, holds a connection and memory for as long as it likes. From the end of the head on, the
body is `BodyLimit`'s, and after the answer the time for a further head begins: uvicorn's own, for kept
connections, ends with whatever is sent, be it an empty line or the rest of a body that nobody reads.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES = 64 * 1024
"""As uvicorn's other protocol has it (h11_max_incomplete_event_size); nginx takes 32 KiB."""


class GuardedProtocol(HttpToolsProtocol):
    """Closes connections whose next head does not arrive in time, or grows too large."""

    def __init__(self, *args: Any, head_seconds: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_seconds = head_seconds
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._is_in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first head."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what comes before the end of a head, and is no body's."""
        if self._head_timer is not None and not self._is_in_body:
            self._head_bytes += len(data)
        super().data_received(data)
        # Still within a head: no body is among what was counted.
        if self._head_timer is not None and self._head_bytes > MOST_HEAD_BYTES:
            self._stop_timer()
            self.send_400_response(f"The head of the request is larger than {MOST_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """Begin to wait for a further head that follows at once, before the answer to the one before it."""
        super().on_message_begin()
        if self._head_timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """Wait no longer."""
        self._stop_timer()
        self._is_in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Take what follows for a further head."""
        self._is_in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begin to wait for a further head, unless a request is under way or one has begun."""
        super().on_response_complete()
        if self.cycle.response_complete and self._head_timer is None:
            self._await_head()

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(self._head_seconds, self._close_slow)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_slow(self) -> None:
        self._head_timer = None
        # Nothing was asked yet that could be answered.
        self.transport.close()


def guarded_protocol(head_seconds: float) -> Any:
    """Return the protocol, as uvicorn's `http` takes it, with a time for each head."""
    return partial(GuardedProtocol, head_seconds=head_seconds)
