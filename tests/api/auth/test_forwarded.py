from __future__ import annotations

from ipaddress import ip_network

import pytest

from plimsoll.api.auth.forwarded import caller_behind
from tests.api.auth.test_keys import served

PROXIES = (ip_network("10.1.0.0/16"), ip_network("fd00::/8"))
PROXY, CLIENT, OTHER = "10.1.2.3", "203.0.113.7", "198.51.100.9"


@pytest.mark.parametrize(
    ("peer", "told", "caller"),
    [
        # A stranger is whoever it is, whatever it says.
        (CLIENT, OTHER, CLIENT),
        (CLIENT, "127.0.0.1", CLIENT),
        # A trusted proxy, and this machine's own.
        (PROXY, CLIENT, CLIENT),
        ("127.0.0.1", CLIENT, CLIENT),
        ("::1", CLIENT, CLIENT),
        ("fd00::5", "2001:db8::7", "2001:db8::7"),
        ("::ffff:10.1.2.3", CLIENT, CLIENT),
        # Two of them in a row.
        (PROXY, f"{CLIENT}, 10.1.9.9", CLIENT),
        # What the client wrote itself comes before what the proxy saw, and is not read.
        (PROXY, f"{OTHER}, {CLIENT}", CLIENT),
        (PROXY, f"127.0.0.1,{CLIENT}", CLIENT),
        # Of this machine only this machine's proxy can tell; a pod within the trusted network cannot become it.
        (PROXY, "127.0.0.1, 10.1.9.9", "10.1.9.9"),
        (PROXY, "127.0.0.1", PROXY),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        # With ports, as some proxies write them.
        (PROXY, f"{CLIENT}:4711", CLIENT),
        (PROXY, "[2001:db8::7]:4711", "2001:db8::7"),
        # Nothing that names anyone.
        (PROXY, "", PROXY),
        (PROXY, "unknown", PROXY),
        (PROXY, f"{CLIENT}, unknown", PROXY),
        ("", CLIENT, ""),
    ],
)
def test_a_list_is_believed_from_its_end_for_as_long_as_who_tells_it_is_trusted(peer: str, told: str, caller: str):
    assert caller_behind(peer, told, PROXIES) == caller


async def test_behind_a_trusted_proxy_each_caller_has_a_rate_of_its_own(database_url: str):
    rate = {"allow_anonymous": True, "key_requests_per_second": 0.001}
    first, second = {"x-forwarded-for": CLIENT}, {"x-forwarded-for": OTHER}
    async with served(database_url, (PROXY, 1), trusted_proxies=("10.1.0.0/16",), **rate) as client:
        answers = [(await client.get("/formats", headers=told)).status_code for told in (first, first, second)]
        assert answers == [200, 429, 200]
    # Without the setting they are one: anyone could write the header.
    async with served(database_url, (PROXY, 1), **rate) as client:
        answers = [(await client.get("/formats", headers=told)).status_code for told in (first, second)]
        assert answers == [200, 429]


async def test_no_header_makes_a_caller_this_machine(database_url: str):
    spoofed = {"x-forwarded-for": "127.0.0.1"}
    async with served(database_url, (PROXY, 1), trusted_proxies=("10.0.0.0/8",)) as client:
        assert (await client.get("/metrics", headers=spoofed)).status_code == 401
