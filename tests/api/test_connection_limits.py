from __future__ import annotations

import resource
import subprocess
import sys
from ipaddress import ip_network

from structlog.testing import capture_logs

from plimsoll.api.connection_limits import LOGGED_EVERY_SECONDS, ConnectionLimits


class Connection:
    def __init__(self) -> None:
        self.is_given_up = False

    def give_up(self) -> None:
        self.is_given_up = True


def held(limits: ConnectionLimits, count: int, host: str, *, waiting: bool) -> list[Connection]:
    """Return so many new connections of an address, which all must be admitted."""
    connections = [Connection() for _ in range(count)]
    for connection in connections:
        assert limits.admit(connection, host)
        if waiting:
            limits.wait_for_head(connection)
    return connections


def test_who_has_waited_longest_for_a_head_makes_room():
    limits = ConnectionLimits(3, most_of_one=3)
    first, second, third = held(limits, 3, "192.0.2.1", waiting=True)
    limits.stop_waiting(first)  # It asks something.
    assert limits.admit(Connection(), "192.0.2.9")
    assert [each.is_given_up for each in (first, second, third)] == [False, True, False]


def test_where_all_are_busy_a_further_one_is_refused_until_one_ends():
    limits = ConnectionLimits(2, most_of_one=2)
    first, _ = held(limits, 2, "192.0.2.1", waiting=False)
    assert not limits.admit(Connection(), "192.0.2.9")
    limits.release(first)
    assert limits.admit(Connection(), "192.0.2.9")


def test_an_address_holds_its_share_and_a_site_counts_as_one():
    limits = ConnectionLimits(100, most_of_one=2)
    first, _ = held(limits, 2, "2001:db8::1", waiting=True)
    assert not limits.admit(Connection(), "2001:db8::2")
    assert limits.admit(Connection(), "2001:db8:0:1::1")
    limits.release(first)
    assert limits.admit(Connection(), "2001:db8::2")


def test_this_machine_and_trusted_proxies_hold_as_many_as_all():
    limits = ConnectionLimits(100, most_of_one=2, proxies=(ip_network("10.0.0.0/8"),))
    held(limits, 3, "127.0.0.1", waiting=False)
    held(limits, 3, "10.1.2.3", waiting=False)


def test_refusals_are_logged_together():
    now = [0.0]
    limits = ConnectionLimits(1, most_of_one=1, clock=lambda: now[0])
    held(limits, 1, "192.0.2.1", waiting=False)
    with capture_logs() as logs:
        for _ in range(5):
            limits.admit(Connection(), "192.0.2.9")
        now[0] = LOGGED_EVERY_SECONDS
        limits.admit(Connection(), "192.0.2.9")
    assert [entry["refused"] for entry in logs] == [1, 5]
    assert logs[0]["log_level"] == "warning"


def test_the_soft_limit_of_files_is_raised_to_the_hard_one():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, %d)); "
        "from plimsoll.api.connection_limits import raise_file_limit; "
        "print(raise_file_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run([sys.executable, "-c", program % hard], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(hard), str(hard)]
