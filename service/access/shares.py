"""How much each caller may have under way at once, so that none of them keeps the others out."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from plimsoll.service.ground.errors import StreamLimitReached

STREAM_RETRY_SECONDS = 5
"""When to come back for a stream: what a key follows may go on for hours, and nobody knows which of it ends first."""


@dataclass(slots=True, kw_only=True)
class _Share:
    running: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class Turns:
    """Gives out a few places: to callers in rotation, first to who has fewest, and to each a share of them at most.

    What one caller holds is thus never all there is, whether or not anybody else waits when it asks: a place that is
    given cannot be taken back for who comes next.
    """

    def __init__(self, places: int, *, most_of_one: int) -> None:
        self._places = places
        self._most_of_one = most_of_one
        self._running = 0
        # In the order of their latest turns.
        self._shares: dict[str, _Share] = {}

    def under_way(self, caller: str | None = None) -> int:
        """Return how many of a caller's, or of everyone's, have a place or wait for one."""
        shares = self._shares.values() if caller is None else [self._shares.get(caller, _Share())]
        return sum(share.running + len(share.waiting) for share in shares)

    def position(self, caller: str) -> int:
        """Return where one more of a caller's would stand among those of its own that wait; 0: it would not wait."""
        share = self._shares.get(caller, _Share())
        has_room = self._running < self._places and share.running < self._most_of_one
        return 0 if has_room else len(share.waiting) + 1

    def others_before(self, caller: str, position: int) -> int:
        """Return how many of other callers have their turns before one at a position among its caller's own."""
        return sum(
            min(len(share.waiting), position)
            for other, share in self._shares.items()
            # Who has its full share takes no place but those it has.
            if other != caller and share.running < self._most_of_one
        )

    def ask(self, caller: str) -> asyncio.Future[None]:
        """Return what is done once the caller has a place; whoever asked gives it to `end` in any case."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._shares.setdefault(caller, _Share()).waiting.append(turn)
        self._give_out()
        return turn

    def end(self, caller: str, turn: asyncio.Future[None]) -> None:
        """Take a place back, or the wish for one."""
        share = self._shares[caller]
        if turn in share.waiting:
            share.waiting.remove(turn)
        else:
            share.running -= 1
            self._running -= 1
        if not (share.running or share.waiting):
            del self._shares[caller]
        self._give_out()

    def _give_out(self) -> None:
        while self._running < self._places:
            may_go = [
                caller for caller, share in self._shares.items() if share.waiting and share.running < self._most_of_one
            ]
            if not may_go:
                return
            caller = min(may_go, key=lambda name: self._shares[name].running)
            share = self._shares.pop(caller)
            self._shares[caller] = share
            share.running += 1
            self._running += 1
            turn = share.waiting.popleft()
            if not turn.cancelled():
                turn.set_result(None)


class StreamShares:
    """Counts the streams that each caller holds open."""

    def __init__(self, most_of_one: int) -> None:
        self._most_of_one = most_of_one
        self._open: Counter[str] = Counter()

    @contextmanager
    def one(self, caller: str) -> Iterator[None]:
        """Hold one stream of a caller's open; raises StreamLimitReached where it has as many as it may."""
        if self._open[caller] >= self._most_of_one:
            raise StreamLimitReached(limit=self._most_of_one, retry_after_seconds=STREAM_RETRY_SECONDS)
        self._open[caller] += 1
        try:
            yield
        finally:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]
