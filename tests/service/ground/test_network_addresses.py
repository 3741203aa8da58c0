from __future__ import annotations

from ipaddress import ip_address

import pytest

from plimsoll.service.ground.network_addresses import MOST_KNOWN_CHARACTERS, is_loopback, plain_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        # However long the zone is.
        (f"fe80::1%{'e' * MOST_KNOWN_CHARACTERS}", "fe80::1"),
    ],
)
def test_an_address_is_read_without_brackets_zone_and_prefix(text: str, address: str):
    assert plain_address(text) == plain_address(text) == ip_address(address)


@pytest.mark.parametrize("text", ["", "localhost", "192.0.2.256", "1" * (MOST_KNOWN_CHARACTERS + 1)])
def test_what_is_no_address_is_none(text: str):
    assert plain_address(text) is None


def test_loopback_is_this_machine_by_address_or_name():
    assert [host for host in ("127.0.0.1", "::1", "LocalHost", "192.0.2.1", "local") if is_loopback(host)] == [
        "127.0.0.1",
        "::1",
        "LocalHost",
    ]
