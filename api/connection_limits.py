"""How many connections a process holds: all together, and of one address; told in the log, and not for each."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from plimsoll.service.access.rate_limits import caller_at
from plimsoll.service.ground.network_addresses import Network, plain_address

FILES_FOR_OTHERS = 200
"""What a process opens beside connections: the database's, its own files, and libraries while they load."""
LOGGED_EVERY_SECONDS = 10.0

log = structlog.get_logger(__name__)


class Guarded(Protocol):
    """A connection that can be given up."""

    def give_up(self) -> None:
        """Close it."""


def raise_file_limit() -> int:
    """Let this process open as many files as it is ever allowed to, and return how many those are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        # Some systems name a hard limit that they do not allow.
        log.warning("file limit not raised", files=soft, error=str(error))
        return soft
    return hard


class ConnectionLimits:
    """Admits connections, and gives up the one that has waited longest for a head where there are too many.

    Who sends a whole head at once is thus answered beside any number of those who do not. The proxies that are trusted,
    and this machine, may hold as many as all together.
    """

    def __init__(
        self,
        most: int,
        *,
        most_of_one: int,
        proxies: Sequence[Network] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._proxies = tuple(proxies)
        self._clock = clock
        self._addresses: dict[Guarded, str] = {}
        self._of_address: Counter[str] = Counter()
        # In the order in which they began to wait.
        self._waiting: dict[Guarded, None] = {}
        self._refused = self._given_up = 0
        self._logged_at = float("-inf")

    def admit(self, connection: Guarded, host: str) -> bool:
        """Return whether a new connection may stay; count it if so."""
        address = "" if self._may_hold_all(host) else caller_at(host)
        if address and self._of_address[address] >= self._most_of_one:
            self._note(refused=1)
            return False
        if len(self._addresses) >= self._most and not self._give_up_one():
            self._note(refused=1)
            return False
        self._addresses[connection] = address
        self._of_address[address] += 1
        return True

    def wait_for_head(self, connection: Guarded) -> None:
        """Note that a connection has asked nothing that is not answered."""
        if connection in self._addresses:
            self._waiting[connection] = None

    def stop_waiting(self, connection: Guarded) -> None:
        """Note that a connection asked something, or is gone."""
        self._waiting.pop(connection, None)

    def release(self, connection: Guarded) -> None:
        """Count a connection no longer."""
        self.stop_waiting(connection)
        address = self._addresses.pop(connection, None)
        if address is not None:
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]

    def _may_hold_all(self, host: str) -> bool:
        address = plain_address(host)
        return address is None or address.is_loopback or any(address in network for network in self._proxies)

    def _give_up_one(self) -> bool:
        oldest = next(iter(self._waiting), None)
        if oldest is None:
            return False
        self._note(given_up=1)
        self.release(oldest)
        oldest.give_up()
        return True

    def _note(self, *, refused: int = 0, given_up: int = 0) -> None:
        self._refused += refused
        self._given_up += given_up
        now = self._clock()
        if now - self._logged_at < LOGGED_EVERY_SECONDS:
            return
        log.warning(
            "too many connections",
            held=len(self._addresses),
            most=self._most,
            most_of_one_address=self._most_of_one,
            refused=self._refused,
            given_up_without_a_head=self._given_up,
        )
        self._refused = self._given_up = 0
        self._logged_at = now
