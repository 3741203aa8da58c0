"""A connection's limits: how many there are, how long and how large a head may be, and how one is closed.

uvicorn's protocol on httptools limits no head: a client that sends its head a byte at a time, or
without end, holds a connection and memory for as long as it likes. From the end of the head on, the
body is `api.request_bodies`', and after the answer the time for a further head begins: uvicorn's own, for kept
connections, ends with whatever is sent, be it an empty line or the rest of a body that nobody reads.

A connection that is closed while its client still sends is reset, and the reset overtakes the answer: so what
is still coming is read and dropped for a while, as nginx does (`lingering_close`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from plimsoll.api.connection_limits import ConnectionLimits

MOST_HEAD_BYTES = 64 * 1024
"""As uvicorn's other protocol has it (h11_max_incomplete_event_size); nginx takes 32 KiB."""
LINGERING_SECONDS = 30.0
"""nginx's `lingering_time`."""
SILENT_SECONDS = 5.0
"""nginx's `lingering_timeout`: how long nothing need come before the client counts as done."""
MOST_DROPPED_BYTES = 64 * 2**20


class LingeringTransport:
    """A transport whose `close` first ends our half and drops what still comes, where a request is not over."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._dropped_bytes = 0
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.lingers_at_close = False
        # What every answer calls, and `__getattr__` finds only after all else has failed.
        self.write = transport.write

    def __getattr__(self, name: str) -> Any:
        """Return whatever else the transport has."""
        return getattr(self._transport, name)

    @property
    def is_lingering(self) -> bool:
        """Return whether everything was said and only what still comes is waited for."""
        return self._timer is not None

    def is_closing(self) -> bool:
        """Return whether nothing more can be said."""
        return self.is_lingering or self._transport.is_closing()

    def close(self) -> None:
        """Close once what was written is sent; at once where it was closed already."""
        if self.is_closing() or not self.lingers_at_close:
            self.close_now()
            return
        self._until = self._loop.time() + LINGERING_SECONDS
        self._timer = self._loop.call_later(SILENT_SECONDS, self.close_now)
        self._transport.resume_reading()
        # TLS has no half of a connection: its client closes once it has read the answer.
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def drop(self, data: bytes) -> None:
        """Take what came after everything was said."""
        self._dropped_bytes += len(data)
        if self._timer is None:
            return
        self._timer.cancel()
        seconds = min(SILENT_SECONDS, self._until - self._loop.time())
        if seconds <= 0 or self._dropped_bytes > MOST_DROPPED_BYTES:
            self.close_now()
        else:
            self._timer = self._loop.call_later(seconds, self.close_now)

    def close_now(self) -> None:
        """Close without waiting for anything to come."""
        self.end()
        self._transport.close()

    def end(self) -> None:
        """Wait for nothing more: the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class GuardedProtocol(HttpToolsProtocol):
    """Closes connections whose next head does not arrive in time, or grows too large."""

    def __init__(self, *args: Any, head_seconds: float, limits: ConnectionLimits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_seconds = head_seconds
        self._limits = limits
        self._head_bytes = 0
        # By when a head is to be there; None while none is waited for.
        self._head_due: float | None = None
        # Goes off once for many heads, and looks which of them it is for: each its own would cost more than parsing it.
        self._head_timer: asyncio.TimerHandle | None = None
        self._lingering: LingeringTransport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first head, if there may be one connection more."""
        self._lingering = LingeringTransport(transport, self.loop)
        super().connection_made(self._lingering)  # type: ignore[arg-type]
        if self._limits.admit(self, self.client[0] if self.client else ""):
            self._await_head()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop_waiting()
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._limits.release(self)
        if self._lingering is not None:
            self._lingering.end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what comes before the end of a head, and is no body's."""
        if self._lingering is not None and self._lingering.is_lingering:
            self._lingering.drop(data)
            return
        if self._head_due is not None and not self._is_in_body:
            self._head_bytes += len(data)
        super().data_received(data)
        # Still within a head: no body is among what was counted.
        if self._head_due is not None and self._head_bytes > MOST_HEAD_BYTES:
            self._stop_waiting()
            self.send_400_response(f"The head of the request is larger than {MOST_HEAD_BYTES} bytes.")

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, of which more may be on its way."""
        self._is_in_body = True
        super().send_400_response(msg)

    @property
    def _is_in_body(self) -> bool:
        return self._lingering is not None and self._lingering.lingers_at_close

    @_is_in_body.setter
    def _is_in_body(self, value: bool) -> None:
        if self._lingering is not None:
            self._lingering.lingers_at_close = value

    def give_up(self) -> None:
        """Close a connection on which nothing was asked yet that could be answered."""
        self._stop_waiting()
        if self._lingering is not None:
            self._lingering.close_now()

    def on_message_begin(self) -> None:
        """Begin to wait for a further head that follows at once, before the answer to the one before it."""
        super().on_message_begin()
        if self._head_due is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """Wait no longer."""
        self._stop_waiting()
        self._is_in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Take what follows for a further head."""
        self._is_in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begin to wait for a further head, unless a request is under way or one has begun."""
        super().on_response_complete()
        if self.cycle.response_complete and self._head_due is None:
            self._await_head()

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head_due = self.loop.time() + self._head_seconds
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_seconds, self._look_for_head)
        self._limits.wait_for_head(self)

    def _look_for_head(self) -> None:
        """Give the connection up if the head that is waited for is due, else look again when it is."""
        self._head_timer = None
        if self._head_due is None:
            return
        left_seconds = self._head_due - self.loop.time()
        if left_seconds > 0:
            self._head_timer = self.loop.call_later(left_seconds, self._look_for_head)
        else:
            self.give_up()

    def _stop_waiting(self) -> None:
        self._limits.stop_waiting(self)
        self._head_due = None


def guarded_protocol(head_seconds: float, limits: ConnectionLimits) -> Any:
    """Return the protocol, as uvicorn's `http` takes it, with a time for each head, and its place among the others."""
    return partial(GuardedProtocol, head_seconds=head_seconds, limits=limits)
